// QuantizedEmbedding: gathers rows of a packed quantized matrix and dequantizes them to float32.

#include "kernel.h"
#include "packed_weights.h"

namespace peagle {

class QuantizedEmbedding : public Kernel {
 public:
  QuantizedEmbedding(const QuantizedEmbeddingAttributes& attributes, const Node& node)
      : weights_(attributes.format, attributes.rows, node.constant(1, "codes"), node.constant(2, "scales")),
        read_(row_reader(weights_.format)) {
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
  static constexpr std::int64_t kRowsPerPiece = 16;

  class Lookup : public Run {
   public:
    Lookup(const QuantizedEmbedding& kernel, const Tensor& ids, const Tensor& y)
        : kernel_(kernel), ids_(ids.data<const std::int64_t>()), count_(ids.shape.count()), y_(y.data<float>()) {}
    void steer() override {
      for (std::int64_t i = 0; i < count_; i++) {
        if (ids_[i] >= 0 && ids_[i] < kernel_.weights_.rows) continue;
        refuse("id %lld is out of range: the matrix has %lld rows", static_cast<long long>(ids_[i]),
               static_cast<long long>(kernel_.weights_.rows));
      }
    }
    int phases() const override { return 1; }
    std::size_t pieces(int) const override { return std::size_t((count_ + kRowsPerPiece - 1) / kRowsPerPiece); }
    void work(int, std::size_t piece) override {
      const std::int64_t first = std::int64_t(piece) * kRowsPerPiece, last = std::min(first + kRowsPerPiece, count_);
      const std::int64_t blocks = kernel_.weights_.blocks;
      for (std::int64_t i = first; i < last; i++) {
        for (std::int64_t b = 0; b < blocks; b++) {
          kernel_.dequantize(ids_[i], b, y_ + (i * blocks + b) * kBlock);
        }
      }
    }

   private:
    const QuantizedEmbedding& kernel_;
    const std::int64_t *ids_, count_;
    float* y_;
  };

  void dequantize(std::int64_t id, std::int64_t block, float* y) const {
    const PackedFormat& form = record(weights_.format);
    const std::int64_t tile = id / kTile;
    const int row = int(id % kTile), part_size = kBlock / form.parts();
    std::int8_t numbers[1][kBlock];
    BlockScale scale;
    read_(weights_, tile, block, row, row + 1, numbers, &scale);
    for (int part = 0; part < form.parts(); part++) {
      const float step = scale.scale * float(scale.steps[part]);
      for (int i = part * part_size; i < (part + 1) * part_size; i++) {
        const float value = float(numbers[0][i]) * step;
        y[i] = form.has_min ? value + scale.minimum : value;
      }
    }
  }

  PackedWeights weights_;
  RowReader read_;
};

}  // namespace peagle
