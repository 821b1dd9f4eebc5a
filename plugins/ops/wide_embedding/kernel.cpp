// WideEmbedding: gathers rows of a packed float32 matrix.

#include "kernel.h"
#include "wide_matrix.h"

namespace peagle {

class WideEmbedding : public Kernel {
 public:
  WideEmbedding(const WideEmbeddingAttributes& attributes, const Node& node)
      : matrix_(attributes.rows, node.constant(1, "matrix")) {}

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    outputs[0] = inputs[0].shape.with(matrix_.columns);
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Lookup(matrix_, inputs[0], outputs[0]));
  }

 private:
  class Lookup : public Run {
   public:
    Lookup(const WideMatrix& matrix, const Tensor& ids, const Tensor& y)
        : matrix_(matrix), ids_(ids.data<const std::int64_t>()), count_(ids.shape.count()), y_(y.data<float>()) {}
    void steer() override {
      for (std::int64_t i = 0; i < count_; i++) {
        if (ids_[i] >= 0 && ids_[i] < matrix_.rows) continue;
        refuse("id %lld is out of range: the matrix has %lld rows", static_cast<long long>(ids_[i]),
               static_cast<long long>(matrix_.rows));
      }
    }
    int phases() const override { return 1; }
    std::size_t pieces(int) const override { return std::size_t((count_ + kIdsPerPiece - 1) / kIdsPerPiece); }
    void work(int, std::size_t piece) override {
      const std::int64_t first = std::int64_t(piece) * kIdsPerPiece, last = std::min(first + kIdsPerPiece, count_);
      for (std::int64_t i = first; i < last; i++) {
        const float* row = matrix_.tile(ids_[i] / kTile) + ids_[i] % kTile;
        float* y = y_ + i * matrix_.columns;
        for (std::int64_t k = 0; k < matrix_.columns; k++) y[k] = row[k * kTile];
      }
    }

   private:
    static constexpr std::int64_t kIdsPerPiece = 16;

    const WideMatrix& matrix_;
    const std::int64_t *ids_, count_;
    float* y_;
  };

  WideMatrix matrix_;
};

}  // namespace peagle
