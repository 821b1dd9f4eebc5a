// Routed experts over packed matrices of float32; their products are those of WideLinear.

#include "routed_experts.h"
#include "wide_matrix.h"
#include "wide_products.h"

namespace peagle {

class WideStack {
 public:
  using Number = float;
  class Rows {
   public:
    Rows(std::int64_t, std::int64_t columns) : columns_(columns) {}
    void use(float* memory) { first_ = memory; }
    float* row(std::int64_t at) const { return first_ + at * columns_; }
    std::int64_t stride(std::int64_t) const { return 1; }

   private:
    std::int64_t columns_;
    float* first_ = nullptr;
  };

  const std::int64_t experts, rows, tiles;  // rows and tiles of one expert

  WideStack(std::int64_t rows_of_one, const Tensor& stack)
      : experts(stack.shape.sizes[0]),
        rows(rows_of_one),
        tiles(stack.shape.rank == 4 ? stack.shape.sizes[1] : 0),
        matrix_(experts * tiles * kTile, flatten_stack(stack)),
        form_(wide_form(instructions())) {
    require_tiles(tiles, rows);
  }

  std::int64_t columns() const { return matrix_.columns; }
  std::int64_t tile_bytes() const { return matrix_.tile_bytes(); }
  std::int64_t width() const { return matrix_.columns; }
  void load_row(const float* x, const Rows& into, std::int64_t at) const {
    std::memcpy(into.row(at), x, std::size_t(matrix_.columns) * sizeof(float));
  }
  // The tile comes from memory for the first rows, and is near for the others.
  void multiply(std::int64_t tile, int columns, const Rows& with, std::int64_t first, std::int64_t last, float* y,
                std::int64_t stride) const {
    for (std::int64_t row = first; row < last;) {
      const int together = int(std::min<std::int64_t>(last - row, form_.most));
      const WideProduct product = (row == first ? form_.multiply_far : form_.multiply)[together - 1];
      product(matrix_.tile(tile), 1, matrix_.columns, {with.row(row), matrix_.columns, y, stride, columns});
      row += together;
      y += together * stride;
    }
  }

 private:
  WideMatrix matrix_;
  WideForm form_;
};

class WideExperts : public RoutedExperts<WideStack> {
 public:
  WideExperts(const WideExpertsAttributes& attributes, const Node& node)
      : RoutedExperts({2 * attributes.inner, node.constant(3, "gate_up")}, {attributes.hidden, node.constant(4, "down")},
                      attributes.inner, gate_of(attributes), 5) {}
};

}  // namespace peagle
