// AcceptPrefix: the token of every column by itself, by any thread; then what of them a row emits.
//
// A token is the same however many threads and columns there are and whatever the instructions: the largest of numbers,
// the k-th of them and sums of whole numbers come out alike in any order, and what remains is operations on one number,
// written once.  It is the token of reference.py but where rounding decides: logarithms and exponentials are not those of
// NumPy, so that two tokens whose scores are some units of the last place apart may change places, and one that lies as
// near to the edge of min-p or top-p may fall on its other side.  Of two scores that are equal the lower id's wins.
//
// Nothing is sorted.  The largest logits of the lanes of a block (below) tell where large ones can lie, and the noise of
// a token is made only where it could still win.

#include "elementary.h"
#include "instructions.h"
#include "kernel.h"
#include "packed_weights.h"

namespace peagle {
namespace accept_prefix {

#define PEAGLE_INLINE __attribute__((always_inline)) inline

constexpr float kEndless = std::numeric_limits<float>::infinity();
constexpr float kLargestBelow1 = 0x0.ffffffp0f;
constexpr float kLargestTolerance = 0.999999f;
constexpr float kWidestNoise = 16.7f;  // -ln(-ln(1 - 2^-24)) is 16.64
constexpr int kRows = 32;              // of a block

// Weights are exp(z - max z) in units of 2^-44, rounded down, so that those of 2^19 tokens fit into 64 bits.
constexpr float kHalfOfUnits = 4194304.0f;  // 2^22
constexpr float kDeepest = 31.0f;           // e^-31 is less than a unit
constexpr std::int64_t kMostVocabulary = 1 << 19;

constexpr int kBFloat16 = 16;  // as ONNX numbers it

// What the token of a column is made from.
struct Column {
  const void* logits;
  int type, vocab;
  float uniform, temperature, top_p, min_p, tolerance;
  int top_k;
  bool has_draft;
  std::int64_t draft;
  float* scratch;
};

struct Decision {
  int token;
  bool keeps_draft;
};

constexpr int kMostLanes = 16;
constexpr std::size_t list_of(std::size_t vocab) { return vocab + kMostLanes; }
constexpr std::size_t scratch_of(std::size_t vocab) { return list_of(vocab) + vocab / kRows + kMostLanes; }

// T. Mueller's integer hash, of one number or of a vector.
template <class Numbers>
PEAGLE_INLINE void scramble(Numbers& x) {
  x = ((x >> 16) ^ x) * 0x45d9f3bu;
  x = ((x >> 16) ^ x) * 0x45d9f3bu;
  x = (x >> 16) ^ x;
}

inline std::uint32_t key_of(float uniform) {
  const float inside = uniform > 0 ? std::min(uniform, kLargestBelow1) : 0;  // NaN is 0
  std::uint32_t key = std::uint32_t(inside * 16777216.0f);
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
    const bool keeps = column_.has_draft && (column_.draft == token || tolerates(best));
    return {token, keeps};
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

  // Whether the lossy policy takes the draft: p(draft) >= (1 - tolerance) * max p, before any filter.
  PEAGLE_INLINE bool tolerates(int best_id) {
    if (!(column_.tolerance > 0) || column_.draft < 0 || column_.draft >= column_.vocab) return false;
    heat_ = column_.temperature > 0 ? column_.temperature : 1;
    const float strictness = 1 - std::min(column_.tolerance, kLargestTolerance);
    return z(int(column_.draft)) >= z(best_id) + float(logarithm(strictness)) && !divides_infinity();
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
  if (instructions == Instructions::kAvx2) return decide_avx2;
#endif
  (void)instructions;
  return decide_portable;
}

}  // namespace accept_prefix

class AcceptPrefix : public Kernel {
 public:
  AcceptPrefix(const AcceptPrefixAttributes&, const Node&) : decide_(accept_prefix::decide_with(instructions())) {}

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape &logits = inputs[kLogits].shape, &ids = inputs[kInputIds].shape, &uniform = inputs[kUniform].shape;
    if (logits.rank != 3 || ids.rank != 2 || uniform.rank != 2) {
      refuse("logits, input_ids and uniform must have 3, 2 and 2 dimensions, not %d, %d and %d", logits.rank, ids.rank,
             uniform.rank);
    }
    const std::int64_t rows = logits.sizes[0], columns = logits.sizes[1], vocab = logits.sizes[2];
    if (columns < 1 || vocab < 1 || vocab > accept_prefix::kMostVocabulary) {
      refuse("%lld columns of %lld logits: there must be a column, and 1 to %lld logits", static_cast<long long>(columns),
             static_cast<long long>(vocab), static_cast<long long>(accept_prefix::kMostVocabulary));
    }
    const int type = inputs[kLogits].type;
    if (type != ort::kFloat32 && type != ort::kFloat16 && type != accept_prefix::kBFloat16) {
      refuse("logits are of type %d, which is no type of floats", type);
    }
    if (ids.sizes[0] != rows || uniform.sizes[0] != rows || uniform.sizes[1] != columns) {
      refuse("input_ids has %lld rows and uniform [%lld, %lld], logits [%lld, %lld]",
             static_cast<long long>(ids.sizes[0]), static_cast<long long>(uniform.sizes[0]),
             static_cast<long long>(uniform.sizes[1]), static_cast<long long>(rows), static_cast<long long>(columns));
    }
    for (int at : {kWindowLen, kDraftLen, kForcedNext, kTemperature, kTopK, kTopP, kMinP, kTolerance}) {
      const Shape& shape = inputs[std::size_t(at)].shape;
      if (shape.rank != 1 || shape.sizes[0] != rows) refuse("input %d must have a number for each of the rows", at);
    }
    outputs[0] = Shape().with(rows).with(columns);
    outputs[1] = Shape().with(rows);
  }

  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Emission(decide_, inputs, outputs));
  }

 private:
  enum Input {
    kLogits, kInputIds, kWindowLen, kDraftLen, kForcedNext, kUniform, kTemperature, kTopK, kTopP, kMinP, kTolerance
  };

  class Emission : public Run {
   public:
    Emission(accept_prefix::Decide decide, const Inputs& inputs, const Outputs& outputs)
        : decide_(decide),
          inputs_(inputs),
          outputs_(outputs),
          rows_(inputs[kLogits].shape.sizes[0]),
          columns_(inputs[kLogits].shape.sizes[1]),
          vocab_(inputs[kLogits].shape.sizes[2]),
          width_(inputs[kInputIds].shape.sizes[1]),
          decisions_(new accept_prefix::Decision[std::size_t(rows_ * columns_)]),
          ends_(new std::atomic<std::int64_t>[std::size_t(rows_)]),
          scratch_(new float[std::size_t(rows_ * columns_) * accept_prefix::scratch_of(std::size_t(vocab_))]) {}

    void steer() override {
      for (std::int64_t row = 0; row < rows_; row++) ends_[std::size_t(row)] = drafts(row);
    }
    int phases() const override { return 2; }
    std::size_t pieces(int phase) const override {
      if (phase == 1) return 1;
      const std::int64_t all = rows_ * columns_, worth = all * vocab_ / kLogitsOfPiece;
      return std::size_t(std::max(std::int64_t(1), std::min(all, worth)));
    }
    void work(int phase, std::size_t piece) override {
      if (phase == 1) {
        for (std::int64_t row = 0; row < rows_; row++) emit(row);
        return;
      }
      const std::int64_t all = rows_ * columns_, count = std::int64_t(pieces(0)), at = std::int64_t(piece);
      for (std::int64_t i = all * at / count; i < all * (at + 1) / count; i++) decide(i / columns_, i % columns_);
    }

   private:
    static constexpr std::int64_t kLogitsOfPiece = 24 << 10;  // waking a thread costs as much

    template <class Number>
    Number of_row(Input input, std::int64_t row) const {
      return inputs_[input].data<const Number>()[row];
    }
    std::int64_t window(std::int64_t row) const {
      return std::max<std::int64_t>(0, std::min<std::int64_t>(of_row<std::int32_t>(kWindowLen, row), width_));
    }
    std::int64_t drafts(std::int64_t row) const {
      const std::int64_t most = std::min(columns_ - 1, window(row) - 1);
      return std::max<std::int64_t>(0, std::min<std::int64_t>(of_row<std::int32_t>(kDraftLen, row), most));
    }
    bool is_drawn(std::int64_t row) const { return window(row) > 0 && of_row<std::int64_t>(kForcedNext, row) < 0; }

    void decide(std::int64_t row, std::int64_t at) {
      std::atomic<std::int64_t>& end = ends_[std::size_t(row)];
      if (at > end || !is_drawn(row)) return;  // a column before ends the row
      const std::int64_t index = row * columns_ + at;
      const Tensor& logits = inputs_[kLogits];
      const int size = logits.type == ort::kFloat32 ? 4 : 2;
      accept_prefix::Column column;
      column.logits = logits.data<const char>() + index * vocab_ * size;
      column.type = logits.type;
      column.vocab = int(vocab_);
      column.uniform = inputs_[kUniform].data<const float>()[index];
      column.temperature = of_row<float>(kTemperature, row);
      column.top_k = of_row<std::int32_t>(kTopK, row);
      column.top_p = of_row<float>(kTopP, row);
      column.min_p = of_row<float>(kMinP, row);
      column.tolerance = of_row<float>(kTolerance, row);
      column.has_draft = at < drafts(row);
      column.draft = column.has_draft ? draft(row, at) : -1;
      column.scratch = scratch_.get() + std::size_t(index) * accept_prefix::scratch_of(std::size_t(vocab_));
      decisions_[std::size_t(index)] = decide_(column);
      if (decisions_[std::size_t(index)].keeps_draft) return;
      for (std::int64_t before = end; at < before && !end.compare_exchange_weak(before, at);) {}
    }
    std::int64_t draft(std::int64_t row, std::int64_t at) const {
      return inputs_[kInputIds].data<const std::int64_t>()[row * width_ + window(row) - drafts(row) + at];
    }

    void emit(std::int64_t row) {
      std::int32_t* tokens = outputs_[0].data<std::int32_t>() + row * columns_;
      std::fill(tokens, tokens + columns_, -1);
      std::int64_t count = window(row) > 0;
      if (is_drawn(row)) {
        const std::int64_t end = ends_[std::size_t(row)];
        for (std::int64_t at = 0; at < end; at++) tokens[at] = std::int32_t(draft(row, at));
        tokens[end] = decisions_[std::size_t(row * columns_ + end)].token;
        count = end + 1;
      } else if (count != 0) {
        tokens[0] = std::int32_t(of_row<std::int64_t>(kForcedNext, row));
      }
      outputs_[1].data<std::int32_t>()[row] = std::int32_t(count);
    }

    const accept_prefix::Decide decide_;
    const Inputs inputs_;
    const Outputs outputs_;
    const std::int64_t rows_, columns_, vocab_, width_;
    const std::unique_ptr<accept_prefix::Decision[]> decisions_;
    const std::unique_ptr<std::atomic<std::int64_t>[]> ends_;  // the last column that a row can emit, for all that is known
    const std::unique_ptr<float[]> scratch_;  // of every column; most of it is never touched
  };

  const accept_prefix::Decide decide_;
};

}  // namespace peagle
