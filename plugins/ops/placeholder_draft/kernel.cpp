// PlaceholderDraft: see reference.py. Every length is clamped to its tensor before it is used as an index.

#include "kernel.h"

namespace peagle {

class PlaceholderDraft : public Kernel {
 public:
  PlaceholderDraft(const PlaceholderDraftAttributes& attributes, const Node&)
      : mask_token_id_(attributes.mask_token_id) {}

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape &ids = inputs[kInputIds].shape, &tokens = inputs[kTokens].shape;
    if (ids.rank != 2 || tokens.rank != 2 || tokens.sizes[1] < 2) {
      refuse("input_ids and tokens must have 2 dimensions, and tokens 2 columns or more");
    }
    const std::int64_t rows = ids.sizes[0], k = tokens.sizes[1] - 1;
    if (ids.sizes[1] < 1 || tokens.sizes[0] != rows) {
      refuse("input_ids has shape [%lld, %lld], but tokens has %lld rows", static_cast<long long>(rows),
             static_cast<long long>(ids.sizes[1]), static_cast<long long>(tokens.sizes[0]));
    }
    for (int at : {kStart, kWindowLen, kDraftLen, kNumTokens}) {
      const Shape& shape = inputs[std::size_t(at)].shape;
      if (shape.rank != 1 || shape.sizes[0] != rows) refuse("input %d must have one number for each row", at);
    }
    outputs[kRowIds] = outputs[kRowIsReal] = Shape().with(rows).with(ids.sizes[1] + k - 1);
    outputs[kEmitRows] = Shape().with(rows).with(k);
    for (int at : {kNewest, kNextStart, kNextWindowLen, kNextDraftLen}) outputs[at] = Shape().with(rows);
  }

  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Layout(mask_token_id_, inputs, outputs));
  }

 private:
  enum Input { kInputIds, kStart, kWindowLen, kDraftLen, kTokens, kNumTokens };
  enum Output { kRowIds, kRowIsReal, kEmitRows, kNewest, kNextStart, kNextWindowLen, kNextDraftLen };

  class Layout : public Run {
   public:
    Layout(std::int64_t mask_token_id, const Inputs& inputs, const Outputs& outputs)
        : mask_token_id_(mask_token_id), inputs_(inputs), outputs_(outputs) {}
    int phases() const override { return 1; }
    std::size_t pieces(int) const override { return 1; }  // only hundreds of elements
    void work(int, std::size_t) override {
      for (std::int64_t row = 0; row < inputs_[kInputIds].shape.sizes[0]; row++) lay_out(row);
    }

   private:
    template <class Number>
    static void put(const Tensor& output, std::int64_t at, Number value) {
      if (output.is_there()) output.data<Number>()[at] = value;
    }

    void lay_out(std::int64_t row) const {
      const std::int64_t width = inputs_[kInputIds].shape.sizes[1], k = inputs_[kTokens].shape.sizes[1] - 1;
      const std::int64_t window = clamped(kWindowLen, row, width);
      const std::int64_t drafts = clamped(kDraftLen, row, std::min(k, window - 1));
      const std::int64_t emitted = clamped(kNumTokens, row, drafts + 1);
      const std::int64_t c0 = window - 1 - drafts;  // window column of the newest token in the target's input
      const std::int64_t real = window > 0 && emitted > 0 ? c0 + emitted : 0;
      const std::int64_t* ids = inputs_[kInputIds].data<const std::int64_t>() + row * width;
      const std::int32_t* tokens = inputs_[kTokens].data<const std::int32_t>() + row * (k + 1);
      const std::int64_t count = width + k - 1;
      for (std::int64_t c = 0; c < count; c++) {
        put(outputs_[kRowIds], row * count + c, c >= real ? mask_token_id_ : c < c0 ? ids[c + 1] : tokens[c - c0]);
        put(outputs_[kRowIsReal], row * count + c, c < real);
      }
      for (std::int64_t j = 0; j < k; j++)
        put(outputs_[kEmitRows], row * k + j, std::max<std::int64_t>(real - 1 + j, 0));
      put<std::int64_t>(outputs_[kNewest], row, real > 0 ? tokens[emitted - 1] : 0);
      put<std::int64_t>(outputs_[kNextStart], row, inputs_[kStart].data<const std::int64_t>()[row] + real);
      put<std::int32_t>(outputs_[kNextWindowLen], row, real > 0 ? std::int32_t(k + 1) : 0);
      put<std::int32_t>(outputs_[kNextDraftLen], row, real > 0 ? std::int32_t(k) : 0);
    }
    std::int64_t clamped(Input input, std::int64_t row, std::int64_t most) const {
      return std::max<std::int64_t>(0, std::min<std::int64_t>(inputs_[input].data<const std::int32_t>()[row], most));
    }

    const std::int64_t mask_token_id_;
    const Inputs inputs_;
    const Outputs outputs_;
  };

  const std::int64_t mask_token_id_;
};

}  // namespace peagle
