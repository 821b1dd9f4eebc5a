// Exponential and hyperbolic tangent of float32, of one number, in operations that every compiler turns into vectors.
//
// A loop over these is the same arithmetic in portable code, AVX2 and AVX-512, and so the same bits: products, sums and
// fused multiply-adds, choices between two numbers, and whole numbers in the bits.  Nothing is asked of a C library but
// the fused multiply-add, which has one right answer.  Within 1.5 units of the last place.

namespace peagle {

__attribute__((always_inline)) inline float number_of(std::uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

__attribute__((always_inline)) inline std::uint32_t bits_of(float number) {
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

// e^x of -104 to 89, and NaN of NaN.
__attribute__((always_inline)) inline float power_of_e(float x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number, ties to even
  const float shifted = __builtin_fmaf(x, 1.44269504088896341f, kRounder);
  const float whole = shifted - kRounder;                           // x = whole * ln 2 + rest
  float rest = __builtin_fmaf(whole, -0.693145751953125f, x);       // ln 2 in two parts; this one is exact
  rest = __builtin_fmaf(whole, -1.42860682030941723e-6f, rest);
  float power = 1.0f / 5040.0f;                                     // Taylor: rest is 0.347 at most
  power = __builtin_fmaf(power, rest, 1.0f / 720.0f);
  power = __builtin_fmaf(power, rest, 1.0f / 120.0f);
  power = __builtin_fmaf(power, rest, 1.0f / 24.0f);
  power = __builtin_fmaf(power, rest, 1.0f / 6.0f);
  power = __builtin_fmaf(power, rest, 0.5f);
  power = __builtin_fmaf(power, rest, 1.0f);
  power = __builtin_fmaf(power, rest, 1.0f);
  // Times 2^whole, in two steps: numbers of 2^-149 to 2^128 are one more than one float can be.
  const std::uint32_t exponent = bits_of(shifted) - 0x4b400000u + 300u;  // + 300: not negative
  const std::uint32_t half = exponent >> 1;                              // 150 more than half of it
  return power * number_of((half - 23u) << 23) * number_of((exponent - half - 23u) << 23);
}

// e^x; 0 below -104, infinity above 88.73, NaN of NaN.
__attribute__((always_inline)) inline float exponential(float x) {
  x = x < -104.0f ? -104.0f : x;  // both leave NaN as it is
  x = x > 89.0f ? 89.0f : x;
  return power_of_e(x);
}
// The same of what is not above 0: one comparison less.
__attribute__((always_inline)) inline float exponential_to_one(float x) { return power_of_e(x < -104.0f ? -104.0f : x); }

// tanh x; NaN of NaN.
__attribute__((always_inline)) inline float hyperbolic_tangent(float x) {
  const float size = number_of(bits_of(x) & 0x7fffffffu);
  const float far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
  const float square = x * x;
  float near = -5.70498872745e-3f;  // Cephes, tanhf: below 0.625, where the other form would lose digits
  near = __builtin_fmaf(near, square, 2.06390887954e-2f);
  near = __builtin_fmaf(near, square, -5.37397155531e-2f);
  near = __builtin_fmaf(near, square, 1.33314422036e-1f);
  near = __builtin_fmaf(near, square, -3.33332819422e-1f);
  near = __builtin_fmaf(near * square, x, x);
  const float signed_far = number_of(bits_of(far) | (bits_of(x) & 0x80000000u));
  return size < 0.625f ? near : signed_far;
}

// ln x of a finite x > 0 that is no subnormal number; -infinity of 0.  Within 2 units of the last place of a double, so
// that what is rounded to a float is, but for one in many millions, the float nearest to the logarithm.
inline double logarithm(double x) {
  if (x == 0) return -std::numeric_limits<double>::infinity();
  std::int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  // x = m * 2^exponent, m of 0.7 to 1.41: the bits of 0.7 are taken off, and put back to the mantissa.
  constexpr std::int64_t kLeast = 0x3fe6a09e667f3bcd, kMantissa = (std::int64_t(1) << 52) - 1;
  const std::int64_t exponent = (bits - kLeast) >> 52;
  bits = ((bits - kLeast) & kMantissa) + kLeast;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  // ln m = 2 atanh s: the series, of s up to 0.172.
  const double s = (m - 1) / (m + 1), square = s * s;
  double series = 1.0 / 21;
  for (int n = 19; n >= 3; n -= 2) series = series * square + 1.0 / n;
  const double small = 2 * s + 2 * s * (square * series);
  return double(exponent) * 0.693147180369123816490 + (small + double(exponent) * 1.90821492927058770002e-10);
}

// ------------------------------------------------------------------------- numbers of sixteen bits, one at a time

inline float widened(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude < 0x0400u) {  // a multiple of 2^-24
    const float value = float(magnitude) * 5.9604644775390625e-8f;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t bits = sign | ((magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u));
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The nearest, ties to even; infinity from 65520 on.
inline std::uint16_t narrowed(float number) {
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return std::uint16_t(sign | 0x7e00u);
  if (bits >= 0x47800000u) return std::uint16_t(sign | 0x7c00u);
  if (bits < 0x38800000u) {  // below 2^-14: whole multiples of 2^-24, rounded by what is added
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, sizeof bits);
    return std::uint16_t(sign | (bits - 0x3f000000u));
  }
  const std::uint32_t odd = bits >> 13 & 1u;
  return std::uint16_t(sign | ((bits - 0x38000000u + 0xfffu + odd) >> 13));
}

}  // namespace peagle
