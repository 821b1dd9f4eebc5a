// WideLinear: multiplies float32 rows with a packed float32 matrix (wide_products.h).

#include "kernel.h"
#include "wide_matrix.h"
#include "wide_products.h"

namespace peagle {

class WideLinear : public Kernel {
 public:
  WideLinear(const WideLinearAttributes& attributes, const Node& node)
      : matrix_(attributes.rows, node.constant(1, "matrix")), kernels_(wide_kernels(instructions())) {}

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape& x = inputs[0].shape;
    if (x.rank < 1 || x.last() != matrix_.columns) {
      refuse("x has %lld columns, but the matrix has %lld", static_cast<long long>(x.last()),
             static_cast<long long>(matrix_.columns));
    }
    outputs[0] = x.with_last(matrix_.rows);
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Products(matrix_, kernels_, inputs[0], outputs[0]));
  }

 private:
  // A piece multiplies one chunk of the matrix with one strip of rows, which stays in a core's cache while the chunk is
  // read.
  class Products : public Run {
   public:
    Products(const WideMatrix& matrix, const WideKernels& kernels, const Tensor& x, const Tensor& y)
        : matrix_(matrix),
          kernels_(kernels),
          x_(x.data<const float>()),
          y_(y.data<float>()),
          rows_(x.shape.count() / matrix.columns),
          tiles_per_pass_(rows_ > 1 && rows_ <= kernels.max_rows ? 1 : kTilesPerPass),
          tiles_per_chunk_(tiles_per_pass_ *
                           std::max<std::int64_t>(1, kChunkBytes / (tiles_per_pass_ * matrix.tile_bytes()))),
          chunks_(ceil_div(matrix.tiles, tiles_per_chunk_)) {}

    int phases() const override { return 1; }
    std::size_t pieces(int) const override { return std::size_t(chunks_ * ceil_div(rows_, kStrip)); }
    void work(int, std::size_t piece) override {
      const auto at = std::int64_t(piece);
      const std::int64_t row = at / chunks_ * kStrip, first = at % chunks_ * tiles_per_chunk_;
      const std::int64_t last = std::min(first + tiles_per_chunk_, matrix_.tiles);
      for (std::int64_t tile = first; tile < last; tile += tiles_per_pass_) {
        multiply(tile, std::min(tiles_per_pass_, last - tile), row, std::min(row + kStrip, rows_));
      }
    }

   private:
    // With one row or many rows, several tiles are processed together; for many rows, they stay in the cache.
    static constexpr std::int64_t kTilesPerPass = 4, kStrip = 48, kChunkBytes = 64 << 10;
    static constexpr int kRowsPerPass = 6;

    static std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

    void multiply(std::int64_t tile, std::int64_t count, std::int64_t first, std::int64_t last) const {
      for (std::int64_t row = first; row < last;) {
        const int num_rows = rows_in_pass(last - row);
        const WideProduct product = (row == first ? kernels_.multiply_streaming : kernels_.multiply)[num_rows - 1];
        product(matrix_.tile(tile), count, matrix_.columns,
                {x_ + row * matrix_.columns, matrix_.columns, y_ + row * matrix_.rows + tile * kTile, matrix_.rows,
                 matrix_.rows - tile * kTile});
        row += num_rows;
      }
    }

    // Many rows are processed six at a time, so that the accumulators fit in registers; the last ones in one pass, or
    // in two of equal size.
    int rows_in_pass(std::int64_t rows_left) const {
      return rows_left <= kernels_.max_rows ? int(rows_left)
             : rows_left < 2 * kRowsPerPass ? int((rows_left + 1) / 2)
                                            : kRowsPerPass;
    }

    const WideMatrix& matrix_;
    const WideKernels& kernels_;
    const float* x_;
    float* y_;
    const std::int64_t rows_, tiles_per_pass_, tiles_per_chunk_, chunks_;
  };

  WideMatrix matrix_;
  WideKernels kernels_;
};

}  // namespace peagle
