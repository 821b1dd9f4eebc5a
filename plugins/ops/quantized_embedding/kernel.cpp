// Rows of a packed matrix, widened.

namespace peagle {

class QuantizedEmbedding {
 public:
  QuantizedEmbedding(const QuantizedEmbeddingAttributes& attributes, const Node& node)
      : weights_(attributes.format, attributes.rows, node.constant(1, "codes"), node.constant(2, "scales")) {
    if (attributes.columns != weights_.columns()) {
      refuse("codes have %lld columns, not %lld", static_cast<long long>(weights_.columns()),
             static_cast<long long>(attributes.columns));
    }
  }

  void run(Call& call) const {
    const Tensor ids = call.input(0);
    const std::int64_t count = ids.shape.count();
    const std::int64_t* id = ids.data<const std::int64_t>();
    float* y = call.output(0, ids.shape.with(weights_.columns())).data<float>();
    for (std::int64_t i = 0; i < count; i++) {
      if (id[i] < 0 || id[i] >= weights_.rows) {
        refuse("id %lld is not one of %lld rows", static_cast<long long>(id[i]), static_cast<long long>(weights_.rows));
      }
      for (std::int64_t block = 0; block < weights_.blocks; block++, y += kBlock) widen(id[i], block, y);
    }
  }

 private:
  void widen(std::int64_t id, std::int64_t block, float* y) const {
    const std::int64_t tile = id / kTile;
    const int row = int(id % kTile);
    const std::uint8_t* codes = weights_.block_codes(tile, block);
    if (weights_.format == Format::kInt8) {
      const float scale = weights_.row_scales(tile)[row];
      for (int i = 0; i < kBlock; i++) y[i] = float(weights_.code(codes, row, i)) * scale;
      return;
    }
    const std::uint16_t* halves = weights_.block_scales(tile, block);
    const float scale = widened(halves[row]);
    const float least = weights_.format == Format::kQ4_1 ? widened(halves[kTile + row]) : 0.0f;
    for (int i = 0; i < kBlock; i++) y[i] = float(weights_.code(codes, row, i)) * scale + least;
  }

  PackedWeights weights_;
};

}  // namespace peagle
