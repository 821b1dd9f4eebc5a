// Rows of a packed matrix, widened.

#include "kernel.h"
#include "packed_weights.h"

namespace peagle {

class QuantizedEmbedding : public Kernel {
 public:
  QuantizedEmbedding(const QuantizedEmbeddingAttributes& attributes, const Node& node)
      : weights_(attributes.format, attributes.rows, node.constant(1, "codes"), node.constant(2, "scales")),
        widen_(with_format(weights_.format, [](auto tag) { return widen<decltype(tag)::format>; })) {
    if (attributes.columns != weights_.columns()) {
      refuse("codes have %lld columns, not %lld", static_cast<long long>(weights_.columns()),
             static_cast<long long>(attributes.columns));
    }
  }

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    outputs[0] = inputs[0].shape.with(weights_.columns());
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Lookup(*this, inputs[0], outputs[0]));
  }

 private:
  static constexpr std::int64_t kRowsAtOnce = 16;

  class Lookup : public Run {
   public:
    Lookup(const QuantizedEmbedding& kernel, const Tensor& ids, const Tensor& y)
        : kernel_(kernel), ids_(ids.data<const std::int64_t>()), count_(ids.shape.count()), y_(y.data<float>()) {}
    void steer() override {
      for (std::int64_t i = 0; i < count_; i++) {
        if (ids_[i] >= 0 && ids_[i] < kernel_.weights_.rows) continue;
        refuse("id %lld is not one of %lld rows", static_cast<long long>(ids_[i]),
               static_cast<long long>(kernel_.weights_.rows));
      }
    }
    int phases() const override { return 1; }
    std::size_t pieces(int) const override { return std::size_t((count_ + kRowsAtOnce - 1) / kRowsAtOnce); }
    void work(int, std::size_t piece) override {
      const std::int64_t first = std::int64_t(piece) * kRowsAtOnce, last = std::min(first + kRowsAtOnce, count_);
      const std::int64_t blocks = kernel_.weights_.blocks;
      for (std::int64_t i = first; i < last; i++) {
        for (std::int64_t b = 0; b < blocks; b++) {
          kernel_.widen_(kernel_.weights_, ids_[i], b, y_ + (i * blocks + b) * kBlock);
        }
      }
    }

   private:
    const QuantizedEmbedding& kernel_;
    const std::int64_t *ids_, count_;
    float* y_;
  };

  template <Format kFormat>
  static void widen(const PackedWeights& weights, std::int64_t id, std::int64_t block, float* y) {
    constexpr PackedFormat kForm = record(kFormat);
    constexpr int kPart = kBlock / kForm.parts();
    const std::int64_t tile = id / kTile;
    const int row = int(id % kTile);
    std::int8_t numbers[kBlock];
    row_numbers<kFormat>(weights.block_codes<kFormat>(tile, block), row, numbers);
    const BlockScale scale = block_scale<kFormat>(weights, tile, block, row);
    for (int i = 0; i < kBlock; i++) {
      const float value = float(numbers[i]) * (scale.scale * float(scale.steps[i / kPart]));
      y[i] = kForm.has_least ? value + scale.least : value;
    }
  }

  PackedWeights weights_;
  void (*widen_)(const PackedWeights&, std::int64_t id, std::int64_t block, float* y);
};

}  // namespace peagle
