// Products of rows, rounded to int8 block by block, with a packed matrix: see tile_products.h.

#include "kernel.h"
#include "packed_weights.h"
#include "tile_products.h"

namespace peagle {

class QuantizedLinear : public Kernel {
 public:
  QuantizedLinear(const QuantizedLinearAttributes& attributes, const Node& node)
      : weights_(attributes.format, attributes.rows, node.constant(1, "codes"), node.constant(2, "scales")),
        form_(form_of(weights_.format, instructions())) {}

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape& x = inputs[0].shape;
    if (x.rank < 1 || x.last() != weights_.columns()) {
      refuse("x has %lld columns, but the weight has %lld", static_cast<long long>(x.last()),
             static_cast<long long>(weights_.columns()));
    }
    outputs[0] = x.with_last(weights_.rows);
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Products(weights_, form_, inputs[0], outputs[0]));
  }

 private:
  // Rows are rounded, then multiplied: pieces of the matrix, times strips of rows that stay in a core's cache while a
  // piece is walked through.
  class Products : public Run {
   public:
    Products(const PackedWeights& weights, const Form& form, const Tensor& x, const Tensor& y)
        : weights_(weights),
          form_(form),
          x_(x.data<const float>()),
          y_(y.data<float>()),
          rows_(x.shape.count() / weights.columns()),
          tiles_at_once_(std::max<std::int64_t>(1, kPieceBytes / weights.tile_bytes())),
          pieces_(parts(weights.tiles, tiles_at_once_)),
          rounded_(rows_, weights.blocks) {}

    int phases() const override { return 2; }
    std::size_t pieces(int phase) const override {
      return std::size_t(phase == 0 ? rows_ : pieces_ * parts(rows_, kStrip));
    }
    Tokens tokens(int phase) const override { return phase == 0 ? Tokens::kRows : Tokens::kNotAlone; }
    std::size_t scratch_bytes() const override { return rounded_.bytes(); }
    void use_scratch(void* memory) override { rounded_.use(memory); }
    void work(int phase, std::size_t piece) override {
      const auto at = std::int64_t(piece);
      if (phase == 0) {
        form_.round(x_ + at * weights_.columns(), weights_.blocks, middle(weights_.format), rounded_.row(at),
                    rounded_.stride(at));
        return;
      }
      const std::int64_t row = at / pieces_ * kStrip, tile = at % pieces_ * tiles_at_once_;
      for (std::int64_t each = tile; each < std::min(tile + tiles_at_once_, weights_.tiles); each++) {
        const int columns = int(std::min<std::int64_t>(kTile, weights_.rows - each * kTile));
        form_.multiply(weights_, each, columns, rounded_, row, std::min(row + kStrip, rows_),
                       y_ + row * weights_.rows + each * kTile, weights_.rows);
      }
    }

   private:
    static constexpr std::int64_t kPieceBytes = 32 << 10;

    static std::int64_t parts(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

    const PackedWeights& weights_;
    const Form& form_;
    const float* x_;
    float* y_;
    const std::int64_t rows_, tiles_at_once_, pieces_;
    RoundedRows rounded_;
  };

  PackedWeights weights_;
  Form form_;
};

}  // namespace peagle
