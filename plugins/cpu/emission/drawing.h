// The token of a column, and which of the drafts that may follow it is kept: for AcceptTree.
//
// A token is the same however many threads and columns there are and whatever the instructions: the largest of numbers,
// the k-th of them and sums of whole numbers come out alike in any order, and what remains is operations on one number,
// written once.  It is the token of accept_prefix/reference.py but where rounding decides: logarithms and exponentials are
// not those of NumPy, so that two tokens whose scores are some units of the last place apart may change places, and one
// that lies as near to the edge of min-p or top-p may fall on its other side.  Of two scores that are equal the lower id's
// wins.
//
// Nothing is sorted.  The largest logits of the lanes of a block (below) tell where large ones can lie, and the noise of
// a token is made only where it could still win.

#include "gumbel_noise.h"
#include "instructions.h"
#include "packed_weights.h"

namespace peagle {
namespace emission {

constexpr float kEndless = std::numeric_limits<float>::infinity();
constexpr float kLargestTolerance = 0.999999f;
constexpr int kRows = 32;  // of a block

// Weights are exp(z - max z) in units of 2^-44, rounded down, so that those of 2^19 tokens fit into 64 bits.
constexpr float kHalfOfUnits = 4194304.0f;  // 2^22
constexpr float kDeepest = 31.0f;           // e^-31 is less than a unit
constexpr std::int64_t kMostVocabulary = 1 << 19;

constexpr int kBFloat16 = 16;  // as ONNX numbers it

// What the token of a column is made from, and the drafts that may follow it.
struct Column {
  const void* logits;
  int type, vocab;
  float uniform, temperature, top_p, min_p, tolerance;
  int top_k;
  const std::int64_t* drafts;
  int draft_count;
  float* scratch;
};

struct Decision {
  int token, kept;  // the first draft that is the token, else the first that is tolerated, else -1
};

constexpr int kMostLanes = 16;
constexpr std::size_t list_of(std::size_t vocab) { return vocab + kMostLanes; }
constexpr std::size_t scratch_of(std::size_t vocab) { return list_of(vocab) + vocab / kRows + kMostLanes; }

template <int kLanes>
struct Vectors;
#define PEAGLE_VECTORS(lanes)                                            \
  template <>                                                            \
  struct Vectors<lanes> {                                                \
    typedef float Floats __attribute__((vector_size(4 * lanes)));        \
    typedef std::int32_t Ints __attribute__((vector_size(4 * lanes)));   \
    typedef std::uint32_t Words __attribute__((vector_size(4 * lanes))); \
  };
PEAGLE_VECTORS(4)
PEAGLE_VECTORS(8)
PEAGLE_VECTORS(16)

// One column, cut into blocks of 32 rows of kLanes logits as they lie in memory: a lane of a block is every kLanes-th
// logit of it.  The last block is filled up to whole rows with -infinity.
template <int kLanes>
class Drawing {
  using Floats = typename Vectors<kLanes>::Floats;
  using Ints = typename Vectors<kLanes>::Ints;
  using Words = typename Vectors<kLanes>::Words;
  static constexpr int kBlock = kRows * kLanes;

 public:
  PEAGLE_INLINE explicit Drawing(const Column& column)
      : column_(column),
        blocks_((column.vocab + kBlock - 1) / kBlock),
        list_(column.scratch),
        largest_(column.scratch + list_of(std::size_t(column.vocab))) {}

  PEAGLE_INLINE Decision decide() {
    const int best = find_largest();
    int token = best;
    if (!(column_.temperature <= 0)) {
      heat_ = column_.temperature;
      token = draw(best);
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
  PEAGLE_INLINE float z(int id) const { return logit(id) / heat_; }

  // Whether one of them is not below the limit.
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

  // A block's logits and how many rows they are; in `buffer`, which holds a block, where memory does not have them so.
  PEAGLE_INLINE const float* block(int at, float* buffer, int* rows) const {
    const int first = at * kBlock, count = std::min(kBlock, column_.vocab - first);
    *rows = (count + kLanes - 1) / kLanes;
    if (column_.type == ort::kFloat32 && count % kLanes == 0) return static_cast<const float*>(column_.logits) + first;
    for (int i = 0; i < *rows * kLanes; i++) buffer[i] = i < count ? logit(first + i) : -kEndless;
    return buffer;
  }

  // The id of the first largest logit, or of the first NaN.  Fills largest_, with NaN for a lane that holds one.
  PEAGLE_INLINE int find_largest() const {
    float buffer[kBlock];
    int rows;
    for (int at = 0; at < blocks_; at++) {
      const float* x = block(at, buffer, &rows);
      Floats best = Floats{} - kEndless, strange = {}, numbers;
      for (int row = 0; row < rows; row++) {
        std::memcpy(&numbers, x + row * kLanes, sizeof numbers);
        best = numbers > best ? numbers : best;
        strange = numbers == numbers ? strange : Floats{} + 1.0f;
      }
      best = strange > 0.0f ? Floats{} + std::numeric_limits<float>::quiet_NaN() : best;
      std::memcpy(largest_ + at * kLanes, &best, sizeof best);
    }
    float best = -kEndless;
    int where = 0;
    for (int lane = 0; lane < blocks_ * kLanes && best == best; lane++) {
      if (largest_[lane] <= best) continue;
      best = largest_[lane];
      where = lane / kLanes;
    }
    const float* x = block(where, buffer, &rows);
    int i = 0;
    while (best == best ? x[i] != best : x[i] == x[i]) i++;
    return where * kBlock + i;
  }

  // A draw from the column.  Without a largest number there is no distribution: NaN compares with nothing, -infinity with
  // everything alike, and id 0 is what is left.
  PEAGLE_INLINE int draw(int best_id) {
    const float best = z(best_id), min_p = column_.min_p;
    if (!(best > -kEndless) || min_p != min_p || divides_infinity()) return 0;
    float floor = best + float(logarithm(min_p < 0 ? 0 : min_p > 1 ? 1 : min_p));
    if (!(floor <= best)) return 0;
    if (best == kEndless) {
      int first = 0;
      while (z(first) != best) first++;
      return first;
    }
    for (int lane = 0; lane < blocks_ * kLanes; lane++) largest_[lane] = largest_[lane] / heat_;
    if (0 < column_.top_k && column_.top_k < column_.vocab) floor = std::max(floor, kth_largest(column_.top_k));
    if (column_.top_p < 1) floor = column_.top_p > 0 ? std::max(floor, least_of_nucleus(best, floor)) : best;
    return race(best_id, best, floor);
  }

  // Whether the lossy policy takes a draft: p(draft) >= (1 - tolerance) * max p, before any filter.
  PEAGLE_INLINE bool tolerates(std::int64_t draft, int best_id) {
    if (!(column_.tolerance > 0) || draft < 0 || draft >= column_.vocab) return false;
    heat_ = column_.temperature > 0 ? column_.temperature : 1;
    const float strictness = 1 - std::min(column_.tolerance, kLargestTolerance);
    return z(int(draft)) >= z(best_id) + float(logarithm(strictness)) && !divides_infinity();
  }

  // Infinity by infinity is NaN, wherever it stands.
  PEAGLE_INLINE bool divides_infinity() const {
    for (int id = 0; heat_ == kEndless && id < column_.vocab; id++) {
      if (logit(id) == -kEndless || logit(id) == kEndless) return true;
    }
    return false;
  }

  // Puts every z >= limit into list_, in the order of lanes; returns how many.
  PEAGLE_INLINE int gather(float limit) const {
    int count = 0;
    for (int lane = 0; lane < blocks_ * kLanes; lane++) {
      if (!(largest_[lane] >= limit)) continue;
      const int first = lane / kLanes * kBlock + lane % kLanes;
      for (int id = first; id < std::min(first + kBlock, column_.vocab); id += kLanes) {
        const float found = z(id);
        if (found >= limit) list_[count++] = found;
      }
    }
    return count;
  }

  // The k-th largest z: not below the k-th largest of the lanes, each of which holds one.
  PEAGLE_INLINE float kth_largest(int k) const {
    float limit = -kEndless;
    if (k <= blocks_ * kLanes) {
      std::copy(largest_, largest_ + blocks_ * kLanes, list_);
      std::nth_element(list_, list_ + k - 1, list_ + blocks_ * kLanes, std::greater<float>());
      limit = list_[k - 1];
    }
    const int count = gather(limit);
    std::nth_element(list_, list_ + k - 1, list_ + count, std::greater<float>());
    return list_[k - 1];
  }

  // The least z that is needed to have top_p of the weight of all z >= floor, going down from the best.
  PEAGLE_INLINE float least_of_nucleus(float best, float floor) const {
    float buffer[kBlock];
    int rows, count = 0;
    std::uint64_t total = 0;
    for (int at = 0; at < blocks_; at++) {
      if (!reaches(at, std::max(floor, best - kDeepest - 1))) continue;
      const float* x = block(at, buffer, &rows);
      total += weight(x, rows, best, floor, heat_);
    }
    const double share = double(total) * column_.top_p;
    std::uint64_t goal = std::uint64_t(share);
    goal += double(goal) < share;
    // Most often it lies near, and what is farther need not be looked at.
    for (float depth = 6; ; depth *= 2.4f) {
      count = gather(std::max(floor, best - depth));
      if (depth > kDeepest || weight_of_list(0, count, best) >= goal) break;
    }
    int first = 0, last = count;
    while (last - first > 1) {
      const int middle = first + (last - first) / 2;
      std::nth_element(list_ + first, list_ + middle, list_ + last, std::greater<float>());
      const std::uint64_t upper = weight_of_list(first, middle, best);
      if (upper >= goal) {
        last = middle;
      } else {
        goal -= upper;
        first = middle;
      }
    }
    return list_[first];
  }

  PEAGLE_INLINE std::uint64_t weight_of_list(int first, int last, float best) const {
    std::uint64_t total = 0;
    for (; last - first >= kBlock; first += kBlock) total += weight(list_ + first, kRows, best, -kEndless, 1);
    float rest[kBlock];
    const int rows = (last - first + kLanes - 1) / kLanes;
    for (int i = 0; i < rows * kLanes; i++) rest[i] = first + i < last ? list_[first + i] : -kEndless;
    return total + weight(rest, rows, best, -kEndless, 1);
  }

  // The weights of all x / heat >= floor together, of 32 rows at most: the higher and the lower bits apart.
  static PEAGLE_INLINE std::uint64_t weight(const float* x, int rows, float best, float floor, float heat) {
    Ints high = {}, low = {};
    for (int row = 0; row < rows; row++) {
      Floats z, weights;
      std::memcpy(&z, x + row * kLanes, sizeof z);
      z = z / heat;
      float each[kLanes];
      const Floats below = z - best;
      std::memcpy(each, &below, sizeof each);
      for (int lane = 0; lane < kLanes; lane++) each[lane] = exponential(each[lane]);
      std::memcpy(&weights, each, sizeof weights);
      weights = z >= floor ? weights * kHalfOfUnits : Floats{};
      const Ints whole = __builtin_convertvector(weights, Ints);
      const Ints rest = __builtin_convertvector((weights - __builtin_convertvector(whole, Floats)) * kHalfOfUnits, Ints);
      high += whole;
      low += rest;
    }
    std::uint64_t total = 0;
    for (int lane = 0; lane < kLanes; lane++) {
      total += (std::uint64_t(std::uint32_t(high[lane])) << 22) + std::uint32_t(low[lane]);
    }
    return total;
  }

  // The arg-max of z + noise over all z >= floor.
  //
  // The noise of t, -ln(-ln t), is at most -ln(1 - t).  So z beats a score only if e^(z - score) >= 1 - t, and neither
  // side needs a logarithm: 1 - t is taken too small by less than 2^-24, and e^x, which is 2^(whole + part) for some part
  // below 1, is taken as 2^whole * (1 + part), which is not less.  What is left, a few of thousands, is looked at.
  PEAGLE_INLINE int race(int best_id, float best, float floor) const {
    const std::uint32_t key = key_of(column_.uniform);
    int winner = best_id;
    float score = best + noise(key, best_id), buffer[kBlock], spares[kBlock];
    Words offsets;
    for (int lane = 0; lane < kLanes; lane++) offsets[lane] = std::uint32_t(lane) + 1;
    int rows;
    for (int at = 0; at < blocks_; at++) {
      const float beaten = score - 1e-3f - 1e-6f * std::max(score, -score);  // more than what all roundings can do
      if (!reaches(at, std::max(floor, beaten - kWidestNoise))) continue;
      const float* x = block(at, buffer, &rows);
      Floats most = Floats{} - 1.0f;
      for (int row = 0; row < rows; row++) {
        Words hashed = offsets + std::uint32_t(at * kBlock + row * kLanes);
        scramble(hashed);
        hashed ^= key;
        scramble(hashed);
        const Floats room = __builtin_convertvector((Ints)(0xffffffu - (hashed >> 8)), Floats) * 5.9604644775390625e-8f;
        Floats z;
        std::memcpy(&z, x + row * kLanes, sizeof z);
        z = z / heat_;
        Floats power = (z - beaten) * 1.44269504f;
        power = power > -120.0f ? power : Floats{} - 120.0f;
        power = power < 0.0f ? power : Floats{};
        const Floats chance = (Floats)__builtin_convertvector((power + 127.0f) * 8388608.0f, Ints);
        const Floats spare = z >= floor ? chance - room : Floats{} - 1.0f;
        std::memcpy(spares + row * kLanes, &spare, sizeof spare);
        most = spare > most ? spare : most;
      }
      if (!reaches(most, 0)) continue;
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
  float heat_ = 1;
  float *const list_, *const largest_;  // [vocab]; [blocks, kLanes]: of the lanes, divided by heat_ where that is not 1
};

using Decide = Decision (*)(const Column&);
inline Decision decide_portable(const Column& column) { return Drawing<4>(column).decide(); }
#ifdef PEAGLE_X86_64
PEAGLE_AVX2 inline Decision decide_avx2(const Column& column) { return Drawing<8>(column).decide(); }
PEAGLE_AVX512_VNNI inline Decision decide_avx512(const Column& column) { return Drawing<16>(column).decide(); }
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
