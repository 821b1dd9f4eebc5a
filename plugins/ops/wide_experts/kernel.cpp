// WideExperts: routed experts over packed float32 matrices, with the products of WideLinear.

#include "routed_experts.h"
#include "wide_matrix.h"
#include "wide_products.h"

namespace peagle {

class WideStack {
 public:
  using Number = float;
  class Rows {
   public:
    explicit Rows(std::int64_t columns) : columns_(columns) {}
    void use(float* memory) { first_ = memory; }
    float* row(std::int64_t at) const { return first_ + at * columns_; }
    std::int64_t stride(std::int64_t) const { return 1; }

   private:
    std::int64_t columns_;
    float* first_ = nullptr;
  };

  const std::int64_t experts, rows, tiles;  // rows, tiles: per expert

  WideStack(std::int64_t num_rows, const Tensor& stack)
      : experts(stack.shape.sizes[0]),
        rows(num_rows),
        tiles(stack.shape.rank == 4 ? stack.shape.sizes[1] : 0),
        matrix_(experts * tiles * kTile, flatten_stack(stack)),
        kernels_(wide_kernels(instructions())) {
    require_tiles(tiles, rows);
  }

  std::int64_t columns() const { return matrix_.columns; }
  std::int64_t tile_bytes() const { return matrix_.tile_bytes(); }
  std::int64_t width() const { return matrix_.columns; }
  Rows operand(std::int64_t) const { return Rows(matrix_.columns); }
  void load_row(const float* x, const Rows& into, std::int64_t at) const {
    std::memcpy(into.row(at), x, std::size_t(matrix_.columns) * sizeof(float));
  }
  // The first pass streams the tile from memory; later passes find it in the cache.
  void multiply(std::int64_t tile, int columns, const Rows& x, std::int64_t first, std::int64_t last, float* y,
                std::int64_t stride) const {
    for (std::int64_t row = first; row < last;) {
      const int num_rows = int(std::min<std::int64_t>(last - row, kernels_.max_rows));
      const WideProduct product = (row == first ? kernels_.multiply_streaming : kernels_.multiply)[num_rows - 1];
      product(matrix_.tile(tile), 1, matrix_.columns, {x.row(row), matrix_.columns, y, stride, columns});
      row += num_rows;
      y += num_rows * stride;
    }
  }

 private:
  WideMatrix matrix_;
  WideKernels kernels_;
};

class WideExperts : public RoutedExperts<WideStack> {
 public:
  WideExperts(const WideExpertsAttributes& attributes, const Node& node)
      : RoutedExperts({2 * attributes.inner, node.constant(3, "gate_up")},
                      {attributes.hidden, node.constant(4, "down")}, attributes.inner, gate_of(attributes), 5) {}
};

}  // namespace peagle
