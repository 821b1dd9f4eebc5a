// The inputs of an op that accepts drafts, and a run that decides columns, by any thread, and then emits.

#include "drawing.h"
#include "kernel.h"

namespace peagle {
namespace emission {

enum Input {
  kLogits, kInputIds, kWindowLen, kDraftLen, kForcedNext, kUniform, kTemperature, kTopK, kTopP, kMinP, kTolerance, kAncestors
};

// Refuses inputs that do not fit each other; says the shapes of tokens and their number.
inline void check_shapes(const Inputs& inputs, Shape* outputs) {
  const Shape &logits = inputs[kLogits].shape, &ids = inputs[kInputIds].shape, &uniform = inputs[kUniform].shape;
  if (logits.rank != 3 || ids.rank != 2 || uniform.rank != 2) {
    refuse("logits, input_ids and uniform must have 3, 2 and 2 dimensions, not %d, %d and %d", logits.rank, ids.rank,
           uniform.rank);
  }
  const std::int64_t rows = logits.sizes[0], columns = logits.sizes[1], vocab = logits.sizes[2];
  if (columns < 1 || vocab < 1 || vocab > kMostVocabulary) {
    refuse("logits have %lld columns of %lld numbers, but need at least one column, and 1 to %lld numbers", static_cast<long long>(columns),
           static_cast<long long>(vocab), static_cast<long long>(kMostVocabulary));
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
        scratch_(new float[std::size_t(rows_ * columns_) * scratch_of(std::size_t(vocab_))]) {}

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
    for (std::int64_t i = all * at / count; i < all * (at + 1) / count; i++) {
      const std::int64_t row = i / columns_, column = i % columns_;
      if (is_drawn(row) && column <= drafts(row)) decide(row, column);
    }
  }

 protected:
  // Decides column `at` of a row, 0 .. drafts(row), unless the row cannot come there.
  virtual void decide(std::int64_t row, std::int64_t at) = 0;
  // Writes what a row emits and the window column before each of it, of which columns_ numbers have room; returns how
  // many.
  virtual std::int64_t emit_decided(std::int64_t row, std::int32_t* tokens, std::int32_t* path) const = 0;

  std::int64_t window(std::int64_t row) const {
    return std::max<std::int64_t>(0, std::min<std::int64_t>(of_row<std::int32_t>(kWindowLen, row), width_));
  }
  std::int64_t drafts(std::int64_t row) const {
    const std::int64_t most = std::min(columns_ - 1, window(row) - 1);
    return std::max<std::int64_t>(0, std::min<std::int64_t>(of_row<std::int32_t>(kDraftLen, row), most));
  }
  // The window column of the newest token that is no draft; -1 of an idle row.
  std::int64_t newest(std::int64_t row) const { return window(row) - 1 - drafts(row); }
  // Ids of the window from column newest(row) + 1 on: its drafts.
  const std::int64_t* draft_ids(std::int64_t row) const {
    return inputs_[kInputIds].data<const std::int64_t>() + row * width_ + newest(row) + 1;
  }

  // Decides a column that `count` drafts may follow.
  Decision decided(std::int64_t row, std::int64_t at, const std::int64_t* drafts, int count) {
    const std::int64_t index = row * columns_ + at;
    const Tensor& logits = inputs_[kLogits];
    const int size = logits.type == ort::kFloat32 ? 4 : 2;
    Column column;
    column.logits = logits.data<const char>() + index * vocab_ * size;
    column.type = logits.type;
    column.vocab = int(vocab_);
    column.uniform = inputs_[kUniform].data<const float>()[index];
    column.temperature = of_row<float>(kTemperature, row);
    column.top_k = of_row<std::int32_t>(kTopK, row);
    column.top_p = of_row<float>(kTopP, row);
    column.min_p = of_row<float>(kMinP, row);
    column.tolerance = of_row<float>(kTolerance, row);
    column.drafts = drafts;
    column.draft_count = count;
    column.scratch = scratch_.get() + std::size_t(index) * scratch_of(std::size_t(vocab_));
    return decisions_[std::size_t(index)] = decide_(column);
  }
  const Decision& decision(std::int64_t row, std::int64_t at) const { return decisions_[std::size_t(row * columns_ + at)]; }

  const std::int64_t rows_, columns_, width_;
  const Inputs inputs_;

 private:
  static constexpr std::int64_t kLogitsOfPiece = 24 << 10;  // waking a thread costs as much

  template <class Number>
  Number of_row(Input input, std::int64_t row) const {
    return inputs_[input].data<const Number>()[row];
  }
  bool is_drawn(std::int64_t row) const { return window(row) > 0 && of_row<std::int64_t>(kForcedNext, row) < 0; }

  void emit(std::int64_t row) const {
    std::int32_t* tokens = outputs_[0].data<std::int32_t>() + row * columns_;
    std::int32_t* path = outputs_[2].data<std::int32_t>() + row * columns_;
    std::fill(tokens, tokens + columns_, -1);
    std::fill(path, path + columns_, -1);
    std::int64_t count = window(row) > 0;
    if (is_drawn(row)) {
      count = emit_decided(row, tokens, path);
    } else if (count != 0) {
      tokens[0] = std::int32_t(of_row<std::int64_t>(kForcedNext, row));
      path[0] = std::int32_t(window(row) - 1);
    }
    outputs_[1].data<std::int32_t>()[row] = std::int32_t(count);
  }

  const Decide decide_;
  const Outputs outputs_;
  const std::int64_t vocab_;
  const std::unique_ptr<Decision[]> decisions_;
  const std::unique_ptr<float[]> scratch_;  // of every column; most of it is never touched
};

}  // namespace emission
}  // namespace peagle
