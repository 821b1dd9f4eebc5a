// Gumbel noise as a pure function of a column's random number and a token id.

#include "elementary.h"

namespace peagle {
namespace emission {

#define PEAGLE_INLINE __attribute__((always_inline)) inline

constexpr float kLargestBelow1 = 0x0.ffffffp0f;
constexpr float kMaxNoise = 16.7f;  // -ln(-ln(1 - 2^-24)) is 16.64

// T. Mueller's integer hash, for a scalar or a vector.
template <class Numbers>
PEAGLE_INLINE void scramble(Numbers& x) {
  x = ((x >> 16) ^ x) * 0x45d9f3bu;
  x = ((x >> 16) ^ x) * 0x45d9f3bu;
  x = (x >> 16) ^ x;
}

inline std::uint32_t key_of(float uniform) {
  const float clamped = uniform > 0 ? std::min(uniform, kLargestBelow1) : 0;  // NaN gives 0
  std::uint32_t key = std::uint32_t(clamped * 16777216.0f);
  scramble(key);
  return key;
}

inline float noise(std::uint32_t key, int id) {
  std::uint32_t hashed = std::uint32_t(id) + 1;
  scramble(hashed);
  hashed ^= key;
  scramble(hashed);
  const float t = std::min(std::max(float(hashed) * 2.3283064365386963e-10f, 1.1641532182693481e-10f), kLargestBelow1);
  return -float(logarithm(-float(logarithm(t))));
}

}  // namespace emission
}  // namespace peagle
