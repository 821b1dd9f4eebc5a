// Selects the token of a column (greedy or sampled), and the draft that it accepts, for AcceptTree.
//
// The result does not depend on the number of threads or columns, or on the instruction set: maxima, k-th largest
// values and integer sums are exact in any order, and all other operations act on single numbers in the same code. The
// result equals accept_prefix/reference.py except where rounding decides, because logarithm and exponential differ from
// NumPy's: between tokens whose scores are a few units in the last place apart, and for a token at the threshold of
// min-p or top-p. Of equal scores, the lower id wins.
//
// Nothing is sorted. The largest logit of each lane of a block (see below) excludes most blocks, and Gumbel noise is
// computed only for tokens that can still win.

#include "gumbel_noise.h"
#include "instructions.h"
#include "packed_weights.h"

namespace peagle {
namespace emission {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMaxTolerance = 0.999999f;
constexpr int kRows = 32;  // per block

// A weight is exp(z - max z) in units of 2^-44, rounded down, so the sum of 2^19 weights fits in 64 bits.
constexpr float kHalfUnits = 4194304.0f;  // 2^22
constexpr float kMaxDepth = 31.0f;        // e^-31 is less than one unit
constexpr std::int64_t kMaxVocabulary = 1 << 19;

constexpr int kBFloat16 = 16;  // ONNX's number of the type

// The logits and sampling parameters of one column, and the drafts that may follow it.
struct Column {
  const void* logits;  // [vocab]
  int type, vocab;
  float uniform, temperature, top_p, min_p, tolerance;
  int top_k;
  const std::int64_t* drafts;
  int draft_count;
  float* scratch;
};

struct Decision {
  int token, kept;  // kept: the first draft equal to the token, otherwise the first tolerated draft, otherwise -1
};

constexpr int kMaxLanes = 16;
constexpr std::size_t list_size(std::size_t vocab) { return vocab + kMaxLanes; }
constexpr std::size_t scratch_size(std::size_t vocab) { return list_size(vocab) + vocab / kRows + kMaxLanes; }

template <int kLanes>
struct Vectors;
#define PEAGLE_VECTORS(lanes)                                            \
  template <>                                                            \
  struct Vectors<lanes> {                                                \
    typedef float Floats __attribute__((vector_size(4 * lanes)));        \
    typedef std::int32_t Ints __attribute__((vector_size(4 * lanes)));   \
    typedef std::uint32_t UInts __attribute__((vector_size(4 * lanes))); \
  };
PEAGLE_VECTORS(4)
PEAGLE_VECTORS(8)
PEAGLE_VECTORS(16)

// Processes one column in blocks of 32 rows x kLanes consecutive logits. A lane is every kLanes-th logit of a block.
// The last block is padded to whole rows with -infinity.
template <int kLanes>
class TokenSelector {
  using Floats = typename Vectors<kLanes>::Floats;
  using Ints = typename Vectors<kLanes>::Ints;
  using UInts = typename Vectors<kLanes>::UInts;
  static constexpr int kBlock = kRows * kLanes;

 public:
  PEAGLE_INLINE explicit TokenSelector(const Column& column)
      : column_(column),
        blocks_((column.vocab + kBlock - 1) / kBlock),
        candidates_(column.scratch),
        largest_(column.scratch + list_size(std::size_t(column.vocab))) {}

  PEAGLE_INLINE Decision decide() {
    const int best = find_largest();
    int token = best;
    if (!(column_.temperature <= 0)) {
      temperature_ = column_.temperature;
      token = sample(best);
    }
    for (int i = 0; i < column_.draft_count; i++) {
      if (column_.drafts[i] == token) return {token, i};
    }
    for (int i = 0; i < column_.draft_count; i++) {
      if (tolerates(column_.drafts[i], best)) return {token, i};
    }
    return {token, -1};
  }

 private:
  PEAGLE_INLINE float logit(int id) const {
    if (column_.type == ort::kFloat32) return static_cast<const float*>(column_.logits)[id];
    const std::uint16_t half = static_cast<const std::uint16_t*>(column_.logits)[id];
    return column_.type == kBFloat16 ? number_of(std::uint32_t(half) << 16) : widened(half);
  }
  PEAGLE_INLINE float z(int id) const { return logit(id) / temperature_; }

  // Returns true if any lane is >= limit.
  static PEAGLE_INLINE bool reaches(const Floats& numbers, float limit) {
    float each[kLanes];
    std::memcpy(each, &numbers, sizeof each);
    bool result = false;
    for (float number : each) result |= number >= limit;
    return result;
  }
  PEAGLE_INLINE bool reaches(int at, float limit) const {
    Floats lanes;
    std::memcpy(&lanes, largest_ + at * kLanes, sizeof lanes);
    return reaches(lanes, limit);
  }

  // Returns a block's logits in float32 and its number of rows. Converts or pads them in `buffer` [kBlock] if
  // necessary.
  PEAGLE_INLINE const float* block(int at, float* buffer, int* rows) const {
    const int first = at * kBlock, count = std::min(kBlock, column_.vocab - first);
    *rows = (count + kLanes - 1) / kLanes;
    if (column_.type == ort::kFloat32 && count % kLanes == 0) return static_cast<const float*>(column_.logits) + first;
    for (int i = 0; i < *rows * kLanes; i++) buffer[i] = i < count ? logit(first + i) : -kInfinity;
    return buffer;
  }

  // Returns the id of the first NaN, otherwise of the first largest logit. Fills largest_; a lane with a NaN gets NaN.
  PEAGLE_INLINE int find_largest() const {
    float buffer[kBlock];
    int rows;
    for (int at = 0; at < blocks_; at++) {
      const float* x = block(at, buffer, &rows);
      Floats best = Floats{} - kInfinity, nan_mask = {}, numbers;
      for (int row = 0; row < rows; row++) {
        std::memcpy(&numbers, x + row * kLanes, sizeof numbers);
        best = numbers > best ? numbers : best;
        nan_mask = numbers == numbers ? nan_mask : Floats{} + 1.0f;
      }
      best = nan_mask > 0.0f ? Floats{} + std::numeric_limits<float>::quiet_NaN() : best;
      std::memcpy(largest_ + at * kLanes, &best, sizeof best);
    }
    float best = -kInfinity;
    int best_block = 0;
    for (int lane = 0; lane < blocks_ * kLanes && best == best; lane++) {
      if (largest_[lane] <= best) continue;
      best = largest_[lane];
      best_block = lane / kLanes;
    }
    const float* x = block(best_block, buffer, &rows);
    int i = 0;
    while (best == best ? x[i] != best : x[i] == x[i]) i++;
    return best_block * kBlock + i;
  }

  // Samples a token. Returns 0 if the logits define no distribution (a NaN, or all -infinity).
  PEAGLE_INLINE int sample(int best_id) {
    const float best = z(best_id), min_p = column_.min_p;
    if (!(best > -kInfinity) || min_p != min_p || divides_infinity()) return 0;
    float floor = best + float(logarithm(min_p < 0 ? 0 : min_p > 1 ? 1 : min_p));
    if (!(floor <= best)) return 0;
    if (best == kInfinity) {
      int first = 0;
      while (z(first) != best) first++;
      return first;
    }
    for (int lane = 0; lane < blocks_ * kLanes; lane++) largest_[lane] = largest_[lane] / temperature_;
    if (0 < column_.top_k && column_.top_k < column_.vocab) floor = std::max(floor, kth_largest(column_.top_k));
    if (column_.top_p < 1) floor = column_.top_p > 0 ? std::max(floor, nucleus_floor(best, floor)) : best;
    return gumbel_argmax(best_id, best, floor);
  }

  // The lossy acceptance policy: p(draft) >= (1 - tolerance) * max p, before any filter.
  PEAGLE_INLINE bool tolerates(std::int64_t draft, int best_id) {
    if (!(column_.tolerance > 0) || draft < 0 || draft >= column_.vocab) return false;
    temperature_ = column_.temperature > 0 ? column_.temperature : 1;
    const float strictness = 1 - std::min(column_.tolerance, kMaxTolerance);
    return z(int(draft)) >= z(best_id) + float(logarithm(strictness)) && !divides_infinity();
  }

  // Returns true if dividing by the temperature gives NaN (infinity / infinity) for any id.
  PEAGLE_INLINE bool divides_infinity() const {
    for (int id = 0; temperature_ == kInfinity && id < column_.vocab; id++) {
      if (logit(id) == -kInfinity || logit(id) == kInfinity) return true;
    }
    return false;
  }

  // Copies every z >= limit to candidates_, in lane order; returns their number.
  PEAGLE_INLINE int gather(float limit) const {
    int count = 0;
    for (int lane = 0; lane < blocks_ * kLanes; lane++) {
      if (!(largest_[lane] >= limit)) continue;
      const int first = lane / kLanes * kBlock + lane % kLanes;
      for (int id = first; id < std::min(first + kBlock, column_.vocab); id += kLanes) {
        const float value = z(id);
        if (value >= limit) candidates_[count++] = value;
      }
    }
    return count;
  }

  // Returns the k-th largest z. It is at least the k-th largest lane maximum, so smaller values are skipped.
  PEAGLE_INLINE float kth_largest(int k) const {
    float limit = -kInfinity;
    if (k <= blocks_ * kLanes) {
      std::copy(largest_, largest_ + blocks_ * kLanes, candidates_);
      std::nth_element(candidates_, candidates_ + k - 1, candidates_ + blocks_ * kLanes, std::greater<float>());
      limit = candidates_[k - 1];
    }
    const int count = gather(limit);
    std::nth_element(candidates_, candidates_ + k - 1, candidates_ + count, std::greater<float>());
    return candidates_[k - 1];
  }

  // Returns the smallest z of the nucleus: of all z >= floor, the largest ones whose weights sum to at least top_p.
  PEAGLE_INLINE float nucleus_floor(float best, float floor) const {
    float buffer[kBlock];
    int rows, count = 0;
    std::uint64_t total = 0;
    for (int at = 0; at < blocks_; at++) {
      if (!reaches(at, std::max(floor, best - kMaxDepth - 1))) continue;
      const float* x = block(at, buffer, &rows);
      total += weight(x, rows, best, floor, temperature_);
    }
    const double share = double(total) * column_.top_p;
    std::uint64_t target = std::uint64_t(share);
    target += double(target) < share;
    // The nucleus is usually shallow, so the search deepens step by step.
    for (float depth = 6; ; depth *= 2.4f) {
      count = gather(std::max(floor, best - depth));
      if (depth > kMaxDepth || weight_of_list(0, count, best) >= target) break;
    }
    int first = 0, last = count;
    while (last - first > 1) {
      const int middle = first + (last - first) / 2;
      std::nth_element(candidates_ + first, candidates_ + middle, candidates_ + last, std::greater<float>());
      const std::uint64_t upper = weight_of_list(first, middle, best);
      if (upper >= target) {
        last = middle;
      } else {
        target -= upper;
        first = middle;
      }
    }
    return candidates_[first];
  }

  PEAGLE_INLINE std::uint64_t weight_of_list(int first, int last, float best) const {
    std::uint64_t total = 0;
    for (; last - first >= kBlock; first += kBlock) total += weight(candidates_ + first, kRows, best, -kInfinity, 1);
    float rest[kBlock];
    const int rows = (last - first + kLanes - 1) / kLanes;
    for (int i = 0; i < rows * kLanes; i++) rest[i] = first + i < last ? candidates_[first + i] : -kInfinity;
    return total + weight(rest, rows, best, -kInfinity, 1);
  }

  // Returns the total weight of all x / divisor >= floor, in at most 32 rows. Sums the upper and lower 22 bits
  // separately.
  static PEAGLE_INLINE std::uint64_t weight(const float* x, int rows, float best, float floor, float divisor) {
    Ints high = {}, low = {};
    for (int row = 0; row < rows; row++) {
      Floats z, weights;
      std::memcpy(&z, x + row * kLanes, sizeof z);
      z = z / divisor;
      float each[kLanes];
      const Floats below = z - best;
      std::memcpy(each, &below, sizeof each);
      for (int lane = 0; lane < kLanes; lane++) each[lane] = exponential(each[lane]);
      std::memcpy(&weights, each, sizeof weights);
      weights = z >= floor ? weights * kHalfUnits : Floats{};
      const Ints whole = __builtin_convertvector(weights, Ints);
      const Ints rest = __builtin_convertvector((weights - __builtin_convertvector(whole, Floats)) * kHalfUnits, Ints);
      high += whole;
      low += rest;
    }
    std::uint64_t total = 0;
    for (int lane = 0; lane < kLanes; lane++) {
      total += (std::uint64_t(std::uint32_t(high[lane])) << 22) + std::uint32_t(low[lane]);
    }
    return total;
  }

  // Returns the arg-max of z + noise over all z >= floor.
  //
  // The noise -ln(-ln t) is at most -ln(1 - t), so z can exceed a score only if e^(z - score) >= 1 - t. This test needs
  // no logarithm: 1 - t is rounded down by less than 2^-24, and e^x = 2^(whole + part), 0 <= part < 1, is replaced by
  // its upper bound 2^whole * (1 + part). Exact scores are computed for the few ids in thousands that pass.
  PEAGLE_INLINE int gumbel_argmax(int best_id, float best, float floor) const {
    const std::uint32_t key = key_of(column_.uniform);
    int winner = best_id;
    float score = best + noise(key, best_id), buffer[kBlock], spares[kBlock];
    UInts offsets;
    for (int lane = 0; lane < kLanes; lane++) offsets[lane] = std::uint32_t(lane) + 1;
    int rows;
    for (int at = 0; at < blocks_; at++) {
      const float threshold = score - 1e-3f - 1e-6f * std::max(score, -score);  // exceeds all rounding errors
      if (!reaches(at, std::max(floor, threshold - kMaxNoise))) continue;
      const float* x = block(at, buffer, &rows);
      Floats max_spare = Floats{} - 1.0f;
      for (int row = 0; row < rows; row++) {
        UInts hashed = offsets + std::uint32_t(at * kBlock + row * kLanes);
        scramble(hashed);
        hashed ^= key;
        scramble(hashed);
        const Floats rest_bound =
            __builtin_convertvector((Ints)(0xffffffu - (hashed >> 8)), Floats) * 5.9604644775390625e-8f;
        Floats z;
        std::memcpy(&z, x + row * kLanes, sizeof z);
        z = z / temperature_;
        Floats exponent = (z - threshold) * 1.44269504f;
        exponent = exponent > -120.0f ? exponent : Floats{} - 120.0f;
        exponent = exponent < 0.0f ? exponent : Floats{};
        const Floats power_bound = (Floats)__builtin_convertvector((exponent + 127.0f) * 8388608.0f, Ints);
        const Floats spare = z >= floor ? power_bound - rest_bound : Floats{} - 1.0f;
        std::memcpy(spares + row * kLanes, &spare, sizeof spare);
        max_spare = spare > max_spare ? spare : max_spare;
      }
      if (!reaches(max_spare, 0)) continue;
      for (int i = 0; i < rows * kLanes; i++) {
        const int id = at * kBlock + i;
        if (spares[i] < 0 || id >= column_.vocab) continue;
        const float other = z(id) + noise(key, id);
        if (other > score || (other == score && id < winner)) {
          score = other;
          winner = id;
        }
      }
    }
    return winner;
  }

  const Column& column_;
  const int blocks_;
  float temperature_ = 1;
  float *const candidates_, *const largest_;  // [vocab]; [blocks, kLanes], divided by temperature_ when sampling
};

using Decide = Decision (*)(const Column&);
inline Decision decide_portable(const Column& column) { return TokenSelector<4>(column).decide(); }
#ifdef PEAGLE_X86_64
PEAGLE_AVX2 inline Decision decide_avx2(const Column& column) { return TokenSelector<8>(column).decide(); }
PEAGLE_AVX512_VNNI inline Decision decide_avx512(const Column& column) { return TokenSelector<16>(column).decide(); }
#endif

inline Decide decide_with(Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) return decide_avx512;
  if (instructions >= Instructions::kAvx2) return decide_avx2;
#endif
  (void)instructions;
  return decide_portable;
}

}  // namespace emission
}  // namespace peagle
