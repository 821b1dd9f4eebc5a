// Products of rows with a packed matrix of float32.

#include "kernel.h"
#include "wide_matrix.h"
#include "wide_products.h"

namespace peagle {

class WideLinear : public Kernel {
 public:
  WideLinear(const WideLinearAttributes& attributes, const Node& node)
      : matrix_(attributes.rows, node.constant(1, "matrix")), form_(wide_form(instructions())) {}

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape& x = inputs[0].shape;
    if (x.rank < 1 || x.last() != matrix_.columns) {
      refuse("x has %lld columns, but the matrix has %lld", static_cast<long long>(x.last()),
             static_cast<long long>(matrix_.columns));
    }
    outputs[0] = x.with_last(matrix_.rows);
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Products(matrix_, form_, inputs[0], outputs[0]));
  }

 private:
  // Pieces of the matrix, times strips of rows that stay in a core's cache while a piece is walked through.
  class Products : public Run {
   public:
    Products(const WideMatrix& matrix, const WideForm& form, const Tensor& x, const Tensor& y)
        : matrix_(matrix),
          form_(form),
          x_(x.data<const float>()),
          y_(y.data<float>()),
          rows_(x.shape.count() / matrix.columns),
          group_(rows_ > 1 && rows_ <= form.most ? 1 : kGroup),
          tiles_at_once_(group_ * std::max<std::int64_t>(1, kPieceBytes / (group_ * matrix.tile_bytes()))),
          pieces_(parts(matrix.tiles, tiles_at_once_)) {}

    int phases() const override { return 1; }
    std::size_t pieces(int) const override { return std::size_t(pieces_ * parts(rows_, kStrip)); }
    void work(int, std::size_t piece) override {
      const auto at = std::int64_t(piece);
      const std::int64_t row = at / pieces_ * kStrip, first = at % pieces_ * tiles_at_once_;
      const std::int64_t last = std::min(first + tiles_at_once_, matrix_.tiles);
      for (std::int64_t tile = first; tile < last; tile += group_) {
        multiply(tile, std::min(group_, last - tile), row, std::min(row + kStrip, rows_));
      }
    }

   private:
    // Tiles at once: of one row, and of many, for which they stay near meanwhile.
    static constexpr std::int64_t kGroup = 4, kStrip = 48, kPieceBytes = 64 << 10;
    static constexpr int kRowsOfMany = 6;

    static std::int64_t parts(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

    void multiply(std::int64_t tile, std::int64_t count, std::int64_t first, std::int64_t last) const {
      for (std::int64_t row = first; row < last;) {
        const int together = rows_together(last - row);
        const WideProduct product = (row == first ? form_.multiply_far : form_.multiply)[together - 1];
        product(matrix_.tile(tile), count, matrix_.columns,
                {x_ + row * matrix_.columns, matrix_.columns, y_ + row * matrix_.rows + tile * kTile, matrix_.rows,
                 matrix_.rows - tile * kTile});
        row += together;
      }
    }

    // Of many rows six at a time, whose sums lie in registers.  The last ones go in halves, or at once where that can be.
    int rows_together(std::int64_t left) const {
      return left <= form_.most ? int(left) : left < 2 * kRowsOfMany ? int((left + 1) / 2) : kRowsOfMany;
    }

    const WideMatrix& matrix_;
    const WideForm& form_;
    const float* x_;
    float* y_;
    const std::int64_t rows_, group_, tiles_at_once_, pieces_;
  };

  WideMatrix matrix_;
  WideForm form_;
};

}  // namespace peagle
