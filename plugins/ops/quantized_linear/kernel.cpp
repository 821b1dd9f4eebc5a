// QuantizedLinear: quantizes rows to int8 in blocks, and multiplies them with a packed matrix (tile_products.h).

#include "kernel.h"
#include "packed_weights.h"
#include "tile_products.h"

namespace peagle {

class QuantizedLinear : public Kernel {
 public:
  QuantizedLinear(const QuantizedLinearAttributes& attributes, const Node& node)
      : weights_(attributes.format, attributes.rows, node.constant(1, "codes"), node.constant(2, "scales")),
        kernels_(tile_kernels(weights_.format, instructions())) {}

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape& x = inputs[0].shape;
    if (x.rank < 1 || x.last() != weights_.columns()) {
      refuse("x has %lld columns, but the weight has %lld", static_cast<long long>(x.last()),
             static_cast<long long>(weights_.columns()));
    }
    outputs[0] = x.with_last(weights_.rows);
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Products(weights_, kernels_, inputs[0], outputs[0]));
  }

 private:
  // Phase 0 quantizes rows. A piece of phase 1 multiplies one chunk of the matrix with one strip of rows, which stays
  // in a core's cache while the chunk is read.
  class Products : public Run {
   public:
    Products(const PackedWeights& weights, const TileKernels& kernels, const Tensor& x, const Tensor& y)
        : weights_(weights),
          kernels_(kernels),
          x_(x.data<const float>()),
          y_(y.data<float>()),
          rows_(x.shape.count() / weights.columns()),
          tiles_per_chunk_(std::max<std::int64_t>(1, chunk_bytes() / weights.tile_bytes())),
          chunks_(ceil_div(weights.tiles, tiles_per_chunk_)),
          rounded_(rows_, weights.blocks, kernels.max_rows) {}

    int phases() const override { return 2; }
    std::size_t pieces(int phase) const override {
      return std::size_t(phase == 0 ? rows_ : chunks_ * ceil_div(rows_, kStrip));
    }
    Tokens tokens(int phase) const override { return phase == 0 ? Tokens::kRows : Tokens::kNone; }
    std::size_t scratch_bytes() const override { return rounded_.bytes(); }
    void use_scratch(void* memory) override { rounded_.use(memory); }
    void work(int phase, std::size_t piece) override {
      const auto at = std::int64_t(piece);
      if (phase == 0) {
        kernels_.round(x_ + at * weights_.columns(), weights_.blocks, middle(weights_.format), rounded_.row(at),
                    rounded_.stride(at));
        return;
      }
      const std::int64_t row = at / chunks_ * kStrip, tile = at % chunks_ * tiles_per_chunk_;
      for (std::int64_t each = tile; each < std::min(tile + tiles_per_chunk_, weights_.tiles); each++) {
        const int columns = int(std::min<std::int64_t>(kTile, weights_.rows - each * kTile));
        kernels_.multiply(weights_, each, columns, rounded_, row, std::min(row + kStrip, rows_),
                       y_ + row * weights_.rows + each * kTile, weights_.rows);
      }
    }

   private:
    // Small chunks divide the work among threads evenly. If there are several strips, a chunk is read for each of them.
    std::int64_t chunk_bytes() const { return rows_ <= kStrip ? 8 << 10 : 32 << 10; }
    static std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

    const PackedWeights& weights_;
    const TileKernels& kernels_;
    const float* x_;
    float* y_;
    const std::int64_t rows_, tiles_per_chunk_, chunks_;
    RoundedRows rounded_;
  };

  PackedWeights weights_;
  TileKernels kernels_;
};

}  // namespace peagle
