// QuantizedExperts: routed experts over packed quantized matrices, with the products of QuantizedLinear.

#include "packed_weights.h"
#include "routed_experts.h"
#include "tile_products.h"

namespace peagle {

class PackedStack {
 public:
  using Rows = RoundedRows;
  using Number = RoundedRows::Block;

  const std::int64_t experts, rows, tiles;  // rows, tiles: per expert

  PackedStack(const std::string& format, std::int64_t num_rows, const Tensor& codes, const Tensor& scales)
      : experts(codes.shape.sizes[0]),
        rows(num_rows),
        tiles(codes.shape.rank == 4 ? codes.shape.sizes[1] : 0),
        weights_(format, experts * tiles * kTile, flatten_stack(codes), flatten_stack(scales)),
        kernels_(tile_kernels(weights_.format, instructions())) {
    require_tiles(tiles, rows);
  }

  std::int64_t columns() const { return weights_.columns(); }
  std::int64_t tile_bytes() const { return weights_.tile_bytes(); }
  std::int64_t width() const { return weights_.blocks; }
  Rows operand(std::int64_t count) const { return {count, weights_.blocks, kernels_.max_rows}; }
  void load_row(const float* x, const Rows& into, std::int64_t at) const {
    kernels_.round(x, weights_.blocks, middle(weights_.format), into.row(at), into.stride(at));
  }
  void multiply(std::int64_t tile, int columns, const Rows& x, std::int64_t first, std::int64_t last, float* y,
                std::int64_t stride) const {
    kernels_.multiply(weights_, tile, columns, x, first, last, y, stride);
  }

 private:
  PackedWeights weights_;
  TileKernels kernels_;
};

class QuantizedExperts : public RoutedExperts<PackedStack> {
 public:
  QuantizedExperts(const QuantizedExpertsAttributes& attributes, const Node& node)
      : RoutedExperts({attributes.gate_up_format, 2 * attributes.inner, node.constant(3, "gate_up_codes"),
                       node.constant(4, "gate_up_scales")},
                      {attributes.down_format, attributes.hidden, node.constant(5, "down_codes"),
                       node.constant(6, "down_scales")},
                      attributes.inner, gate_of(attributes), 7) {}
};

}  // namespace peagle
