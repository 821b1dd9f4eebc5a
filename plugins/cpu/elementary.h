// Scalar elementary functions in float32, written so that compilers can vectorize loops over them.
//
// A loop gives bit-identical results in portable code, AVX2 and AVX-512: it uses only multiplication, addition, fused
// multiply-add, selection and integer operations on the bits. The only function of the C library is fma, which is
// correctly rounded. The error is at most 1.5 units in the last place.

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

// e^x for -104 <= x <= 89; NaN for NaN.
__attribute__((always_inline)) inline float power_of_e(float x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  const float shifted = __builtin_fmaf(x, 1.44269504088896341f, kRounder);
  const float whole = shifted - kRounder;                           // x = whole * ln 2 + rest
  float rest = __builtin_fmaf(whole, -0.693145751953125f, x);       // ln 2 in two parts; whole times the first is exact
  rest = __builtin_fmaf(whole, -1.42860682030941723e-6f, rest);
  float power = 1.0f / 5040.0f;                                     // Taylor series; |rest| <= 0.347
  power = __builtin_fmaf(power, rest, 1.0f / 720.0f);
  power = __builtin_fmaf(power, rest, 1.0f / 120.0f);
  power = __builtin_fmaf(power, rest, 1.0f / 24.0f);
  power = __builtin_fmaf(power, rest, 1.0f / 6.0f);
  power = __builtin_fmaf(power, rest, 0.5f);
  power = __builtin_fmaf(power, rest, 1.0f);
  power = __builtin_fmaf(power, rest, 1.0f);
  // Multiply by 2^whole in two steps, because one float cannot represent the whole range of 2^-149 to 2^128.
  const std::uint32_t exponent = bits_of(shifted) - 0x4b400000u + 300u;  // + 300 avoids negative values
  const std::uint32_t half = exponent >> 1;                              // whole / 2 + 150
  return power * number_of((half - 23u) << 23) * number_of((exponent - half - 23u) << 23);
}

// e^x; 0 for x < -104, infinity for x > 88.73, NaN for NaN.
__attribute__((always_inline)) inline float exponential(float x) {
  x = x < -104.0f ? -104.0f : x;  // both comparisons keep NaN
  x = x > 89.0f ? 89.0f : x;
  return power_of_e(x);
}
// The same for x <= 0, with one comparison less.
__attribute__((always_inline)) inline float exponential_to_one(float x) {
  return power_of_e(x < -104.0f ? -104.0f : x);
}

// tanh x; NaN for NaN.
__attribute__((always_inline)) inline float hyperbolic_tangent(float x) {
  const float size = number_of(bits_of(x) & 0x7fffffffu);
  const float far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
  const float square = x * x;
  float near = -5.70498872745e-3f;  // Cephes tanhf, for |x| < 0.625, where `far` would lose digits
  near = __builtin_fmaf(near, square, 2.06390887954e-2f);
  near = __builtin_fmaf(near, square, -5.37397155531e-2f);
  near = __builtin_fmaf(near, square, 1.33314422036e-1f);
  near = __builtin_fmaf(near, square, -3.33332819422e-1f);
  near = __builtin_fmaf(near * square, x, x);
  const float signed_far = number_of(bits_of(far) | (bits_of(x) & 0x80000000u));
  return size < 0.625f ? near : signed_far;
}

// ln x for 0 < x < infinity, not subnormal; -infinity for 0. The error is at most 2 units in the last place of a
// double, so after rounding to float32 the result is correctly rounded, except for one in many millions.
inline double logarithm(double x) {
  if (x == 0) return -std::numeric_limits<double>::infinity();
  std::int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  // x = m * 2^exponent with 0.7 <= m <= 1.41: subtract the bits of 0.7, split, and add them to the mantissa.
  constexpr std::int64_t kLeast = 0x3fe6a09e667f3bcd, kMantissa = (std::int64_t(1) << 52) - 1;
  const std::int64_t exponent = (bits - kLeast) >> 52;
  bits = ((bits - kLeast) & kMantissa) + kLeast;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  // ln m = 2 atanh s, as a series; |s| <= 0.172.
  const double s = (m - 1) / (m + 1), square = s * s;
  double series = 1.0 / 21;
  for (int n = 19; n >= 3; n -= 2) series = series * square + 1.0 / n;
  const double small = 2 * s + 2 * s * (square * series);
  return double(exponent) * 0.693147180369123816490 + (small + double(exponent) * 1.90821492927058770002e-10);
}

// ------------------------------------------------------------------------------ conversions of single float16 values

inline float widened(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude < 0x0400u) {  // zero or subnormal: a multiple of 2^-24
    const float value = float(magnitude) * 5.9604644775390625e-8f;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t bits = sign | ((magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u));
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to nearest, ties to even; infinity for |x| >= 65520.
inline std::uint16_t narrowed(float number) {
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return std::uint16_t(sign | 0x7e00u);
  if (bits >= 0x47800000u) return std::uint16_t(sign | 0x7c00u);
  if (bits < 0x38800000u) {  // subnormal, below 2^-14: adding 0.5 rounds to a multiple of 2^-24
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
