// The inputs of ops that accept drafts, and their run: threads decide the columns, then one thread writes the output.

#include "token_selector.h"
#include "kernel.h"

namespace peagle {
namespace emission {

enum Input {
  kLogits, kInputIds, kWindowLen, kDraftLen, kForcedNext, kUniform, kTemperature, kTopK, kTopP, kMinP, kTolerance,
  kAncestors
};

// Throws if the inputs' shapes or types do not match; computes the shapes of `tokens` and `num_tokens`.
inline void check_shapes(const Inputs& inputs, Shape* outputs) {
  const Shape &logits = inputs[kLogits].shape, &ids = inputs[kInputIds].shape, &uniform = inputs[kUniform].shape;
  if (logits.rank != 3 || ids.rank != 2 || uniform.rank != 2) {
    refuse("logits, input_ids and uniform must have 3, 2 and 2 dimensions, not %d, %d and %d", logits.rank, ids.rank,
           uniform.rank);
  }
  const std::int64_t rows = logits.sizes[0], columns = logits.sizes[1], vocab = logits.sizes[2];
  if (columns < 1 || vocab < 1 || vocab > kMaxVocabulary) {
    refuse("logits have %lld columns of %lld numbers, but need at least one column, and 1 to %lld numbers",
           static_cast<long long>(columns), static_cast<long long>(vocab), static_cast<long long>(kMaxVocabulary));
  }
  const int type = inputs[kLogits].type;
  if (type != ort::kFloat32 && type != ort::kFloat16 && type != kBFloat16) {
    refuse("logits have type %d, which is not a floating-point type", type);
  }
  if (ids.sizes[0] != rows || uniform.sizes[0] != rows || uniform.sizes[1] != columns) {
    refuse("input_ids has %lld rows and uniform has shape [%lld, %lld], but logits have [%lld, %lld]",
           static_cast<long long>(ids.sizes[0]), static_cast<long long>(uniform.sizes[0]),
           static_cast<long long>(uniform.sizes[1]), static_cast<long long>(rows), static_cast<long long>(columns));
  }
  for (int at : {kWindowLen, kDraftLen, kForcedNext, kTemperature, kTopK, kTopP, kMinP, kTolerance}) {
    const Shape& shape = inputs[std::size_t(at)].shape;
    if (shape.rank != 1 || shape.sizes[0] != rows) refuse("input %d must have one number for each row", at);
  }
  outputs[0] = Shape().with(rows).with(columns);
  outputs[1] = Shape().with(rows);
}

class Emission : public Run {
 public:
  Emission(Decide decide, const Inputs& inputs, const Outputs& outputs)
      : rows_(inputs[kLogits].shape.sizes[0]),
        columns_(inputs[kLogits].shape.sizes[1]),
        width_(inputs[kInputIds].shape.sizes[1]),
        inputs_(inputs),
        decide_(decide),
        outputs_(outputs),
        vocab_(inputs[kLogits].shape.sizes[2]),
        decisions_(new Decision[std::size_t(rows_ * columns_)]),
        scratch_(new float[std::size_t(rows_ * columns_) * scratch_size(std::size_t(vocab_))]) {}

  int phases() const override { return 2; }
  std::size_t pieces(int phase) const override {
    if (phase == 1) return 1;
    const std::int64_t all = rows_ * columns_, wanted = all * vocab_ / kLogitsPerPiece;
    return std::size_t(std::max(std::int64_t(1), std::min(all, wanted)));
  }
  void work(int phase, std::size_t piece) override {
    if (phase == 1) {
      for (std::int64_t row = 0; row < rows_; row++) emit(row);
      return;
    }
    const std::int64_t all = rows_ * columns_, count = std::int64_t(pieces(0)), at = std::int64_t(piece);
    for (std::int64_t i = all * at / count; i < all * (at + 1) / count; i++) {
      const std::int64_t row = i / columns_, column = i % columns_;
      if (is_sampled(row) && column <= drafts(row)) decide(row, column);
    }
  }

 protected:
  // Decides column `at`, 0 .. drafts(row), of a row. May skip a column that no accepted path can reach.
  virtual void decide(std::int64_t row, std::int64_t at) = 0;
  // Writes the tokens that a row emits and, in `path`, the window column that each token follows. Both arrays have
  // columns_ elements. Returns the number of tokens.
  virtual std::int64_t emit_tokens(std::int64_t row, std::int32_t* tokens, std::int32_t* path) const = 0;

  std::int64_t window(std::int64_t row) const {
    return std::max<std::int64_t>(0, std::min<std::int64_t>(row_value<std::int32_t>(kWindowLen, row), width_));
  }
  std::int64_t drafts(std::int64_t row) const {
    const std::int64_t limit = std::min(columns_ - 1, window(row) - 1);
    return std::max<std::int64_t>(0, std::min<std::int64_t>(row_value<std::int32_t>(kDraftLen, row), limit));
  }
  // The window column of the newest committed token; -1 for an idle row.
  std::int64_t newest(std::int64_t row) const { return window(row) - 1 - drafts(row); }
  // The ids of the row's drafts, which are in window columns newest(row) + 1 and later.
  const std::int64_t* draft_ids(std::int64_t row) const {
    return inputs_[kInputIds].data<const std::int64_t>() + row * width_ + newest(row) + 1;
  }

  // Decides a column that may be followed by one of `count` drafts.
  Decision decide_column(std::int64_t row, std::int64_t at, const std::int64_t* drafts, int count) {
    const std::int64_t index = row * columns_ + at;
    const Tensor& logits = inputs_[kLogits];
    const int size = logits.type == ort::kFloat32 ? 4 : 2;
    Column column;
    column.logits = logits.data<const char>() + index * vocab_ * size;
    column.type = logits.type;
    column.vocab = int(vocab_);
    column.uniform = inputs_[kUniform].data<const float>()[index];
    column.temperature = row_value<float>(kTemperature, row);
    column.top_k = row_value<std::int32_t>(kTopK, row);
    column.top_p = row_value<float>(kTopP, row);
    column.min_p = row_value<float>(kMinP, row);
    column.tolerance = row_value<float>(kTolerance, row);
    column.drafts = drafts;
    column.draft_count = count;
    column.scratch = scratch_.get() + std::size_t(index) * scratch_size(std::size_t(vocab_));
    return decisions_[std::size_t(index)] = decide_(column);
  }
  const Decision& decision(std::int64_t row, std::int64_t at) const {
    return decisions_[std::size_t(row * columns_ + at)];
  }

  const std::int64_t rows_, columns_, width_;
  const Inputs inputs_;

 private:
  static constexpr std::int64_t kLogitsPerPiece = 24 << 10;  // about as expensive as waking a thread

  template <class Number>
  Number row_value(Input input, std::int64_t row) const {
    return inputs_[input].data<const Number>()[row];
  }
  bool is_sampled(std::int64_t row) const { return window(row) > 0 && row_value<std::int64_t>(kForcedNext, row) < 0; }

  void emit(std::int64_t row) const {
    std::int32_t* tokens = outputs_[0].data<std::int32_t>() + row * columns_;
    std::int32_t* path = outputs_[2].data<std::int32_t>() + row * columns_;
    std::fill(tokens, tokens + columns_, -1);
    std::fill(path, path + columns_, -1);
    std::int64_t count = window(row) > 0;
    if (is_sampled(row)) {
      count = emit_tokens(row, tokens, path);
    } else if (count != 0) {
      tokens[0] = std::int32_t(row_value<std::int64_t>(kForcedNext, row));
      path[0] = std::int32_t(window(row) - 1);
    }
    outputs_[1].data<std::int32_t>()[row] = std::int32_t(count);
  }

  const Decide decide_;
  const Outputs outputs_;
  const std::int64_t vocab_;
  const std::unique_ptr<Decision[]> decisions_;
  const std::unique_ptr<float[]> scratch_;  // for every column; most of it is never touched
};

}  // namespace emission
}  // namespace peagle
