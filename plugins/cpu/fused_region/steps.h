// Kernels of the standard operators between matrix products: norms, activations, element-wise arithmetic, rotary
// embeddings, Concat and Gather.
//
// They process one token at a time, with operations that give bit-identical results in portable code, AVX2 and AVX-512:
// sums in 16 lanes that are reduced in a fixed order, explicit fused multiply-adds, and the functions of elementary.h.
// They run only as steps of a FusedRegion; they are not registered as operators.

#include "elementary.h"
#include "instructions.h"
#include "kernel.h"

namespace peagle {
namespace steps {

constexpr int kLanes = 16;

// `Body::work`, which is always inlined, compiled for each instruction set.
template <class Body, class... Arguments>
void portable(Arguments... arguments) {
  Body::work(arguments...);
}
#ifdef PEAGLE_X86_64
template <class Body, class... Arguments>
PEAGLE_AVX2 void avx2(Arguments... arguments) {
  Body::work(arguments...);
}
template <class Body, class... Arguments>
PEAGLE_AVX512_VNNI void avx512(Arguments... arguments) {
  Body::work(arguments...);
}
#endif
template <class Body, class... Arguments>
void select_path(void (**function)(Arguments...)) {
  *function = portable<Body, Arguments...>;
#ifdef PEAGLE_X86_64
  const Instructions best = instructions();
  if (best >= Instructions::kAvx2) *function = avx2<Body, Arguments...>;
  if (best == Instructions::kAvx512Vnni) *function = avx512<Body, Arguments...>;
#endif
}

// The rows (along the last dimension) of a tensor, broadcast to the shape `whole`.
class Rows {
 public:
  Rows(const Tensor& tensor, const Shape& whole) : base_(tensor.data<float>()), rank_(whole.rank) {
    const int missing = whole.rank - tensor.shape.rank;
    if (missing < 0) refuse("an operand has more dimensions than the result");
    for (int i = 0; i < whole.rank; i++) {
      const std::int64_t size = i < missing ? 1 : tensor.shape.sizes[i - missing];
      if (size != whole.sizes[i] && size != 1) {
        refuse("cannot broadcast a dimension of %lld to %lld", static_cast<long long>(size),
               static_cast<long long>(whole.sizes[i]));
      }
      strides_[i] = size == 1 ? 0 : tensor.strides[i - missing];
      sizes_[i] = whole.sizes[i];
    }
    is_scalar_ = whole.rank == 0 || (strides_[whole.rank - 1] == 0 && whole.last() != 1);
  }
  float* at(std::int64_t row) const {
    std::int64_t offset = 0;
    for (int i = rank_ - 2; i >= 0; i--) {
      offset += row % sizes_[i] * strides_[i];
      row /= sizes_[i];
    }
    return base_ + offset;
  }
  // Returns true if a row has one element, which is broadcast along the last dimension.
  bool is_scalar() const { return is_scalar_; }

 private:
  float* base_;
  int rank_;
  std::int64_t strides_[kMaxRank] = {}, sizes_[kMaxRank] = {};
  bool is_scalar_;
};

inline std::int64_t rows_of(const Shape& shape) { return shape.last() == 0 ? 0 : shape.count() / shape.last(); }

// A run with one phase and one piece per token.
class TokenRun : public Run {
 public:
  explicit TokenRun(std::int64_t tokens, Tokens order = Tokens::kRows) : count_(tokens), order_(order) {}
  int phases() const override { return 1; }
  std::size_t pieces(int) const override { return std::size_t(count_); }
  Tokens tokens(int) const override { return order_; }
  void work(int, std::size_t at) override { token(std::int64_t(at)); }
  virtual void token(std::int64_t at) = 0;

 private:
  const std::int64_t count_;
  const Tokens order_;
};

class Step : public Kernel {
 public:
  bool takes_views() const override { return true; }
  bool is_token_wise() const override { return true; }
};

// ------------------------------------------------------------------------------------------------ element-wise, binary

struct Sum {
  static float of(float a, float b) { return a + b; }
};
struct Difference {
  static float of(float a, float b) { return a - b; }
};
struct Product {
  static float of(float a, float b) { return a * b; }
};
struct Quotient {
  static float of(float a, float b) { return a / b; }
};

inline Shape broadcast(const Shape& a, const Shape& b) {
  const Shape &longer = a.rank >= b.rank ? a : b, &shorter = a.rank >= b.rank ? b : a;
  Shape result = longer;
  for (int i = 0; i < shorter.rank; i++) {
    std::int64_t& size = result.sizes[longer.rank - shorter.rank + i];
    if (size == 1) size = shorter.sizes[i];
  }
  return result;
}

template <class Function>
class BinaryOp : public Step {
 public:
  explicit BinaryOp(const Node&) { select_path<Body>(&function_); }
  void shapes(const Inputs& inputs, Shape* outputs) const override {
    outputs[0] = broadcast(inputs[0].shape, inputs[1].shape);
    Rows(inputs[0], outputs[0]), Rows(inputs[1], outputs[0]);  // throw if the shapes do not broadcast
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Made(*this, inputs, outputs[0]));
  }

 private:
  struct Body {
    __attribute__((always_inline)) static inline void work(const float* a, bool is_scalar_a, const float* b,
                                                           bool is_scalar_b, float* y, std::int64_t n) {
      if (is_scalar_a || is_scalar_b) {
        for (std::int64_t i = 0; i < n; i++) y[i] = Function::of(a[is_scalar_a ? 0 : i], b[is_scalar_b ? 0 : i]);
        return;
      }
      const float* __restrict first = a;
      const float* __restrict second = b;
      float* __restrict result = y;
      for (std::int64_t i = 0; i < n; i++) result[i] = Function::of(first[i], second[i]);
    }
  };

  struct Made : TokenRun {
    Made(const BinaryOp& step, const Inputs& inputs, const Tensor& y)
        : TokenRun(rows_of(y.shape)), step(step), a(inputs[0], y.shape), b(inputs[1], y.shape), y(y, y.shape),
          n(y.shape.last()) {}
    void token(std::int64_t at) override {
      step.function_(a.at(at), a.is_scalar(), b.at(at), b.is_scalar(), y.at(at), n);
    }
    const BinaryOp& step;
    const Rows a, b, y;
    const std::int64_t n;
  };

  void (*function_)(const float*, bool, const float*, bool, float*, std::int64_t);
};

// ------------------------------------------------------------------------------------------------- element-wise, unary

struct Sigmoid {
  __attribute__((always_inline)) static inline float of(float x) { return 1.0f / (1.0f + exponential(-x)); }
};
struct Tanh {
  __attribute__((always_inline)) static inline float of(float x) { return hyperbolic_tangent(x); }
};
struct GeluByTanh {
  __attribute__((always_inline)) static inline float of(float x) {
    const float inner = 0.79788456080286535588f * __builtin_fmaf(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
  }
};

template <class Function>
class UnaryOp : public Step {
 public:
  explicit UnaryOp(const Node&) { select_path<Body>(&function_); }
  void shapes(const Inputs& inputs, Shape* outputs) const override { outputs[0] = inputs[0].shape; }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Made(*this, inputs[0], outputs[0]));
  }

 private:
  struct Body {
    __attribute__((always_inline)) static inline void work(const float* __restrict x, float* __restrict y,
                                                           std::int64_t n) {
      for (std::int64_t i = 0; i < n; i++) y[i] = Function::of(x[i]);
    }
  };
  struct Made : TokenRun {
    Made(const UnaryOp& step, const Tensor& x, const Tensor& y)
        : TokenRun(rows_of(y.shape)), step(step), x(x, y.shape), y(y, y.shape), n(y.shape.last()) {}
    void token(std::int64_t at) override { step.function_(x.at(at), y.at(at), n); }
    const UnaryOp& step;
    const Rows x, y;
    const std::int64_t n;
  };

  void (*function_)(const float*, float*, std::int64_t);
};

// --------------------------------------------------------------------------------------------------------------- norms

struct NormBody {
  // With `b`, normalizes a + b, which is also written to `sum`.
  __attribute__((always_inline)) static inline void work(const float* a, const float* b, const float* weight,
                                                         float epsilon, float* sum, float* y, std::int64_t n) {
    const float* x = a;
    if (b != nullptr) {
      float* __restrict total = sum;
      for (std::int64_t i = 0; i < n; i++) total[i] = a[i] + b[i];
      x = sum;
    }
    float lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int lane = 0; lane < kLanes; lane++) lanes[lane] = __builtin_fmaf(x[i + lane], x[i + lane], lanes[lane]);
    }
    for (int lane = 0; i + lane < n; lane++) lanes[lane] = __builtin_fmaf(x[i + lane], x[i + lane], lanes[lane]);
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    }
    const float inverse = 1.0f / __builtin_sqrtf(lanes[0] / float(n) + epsilon);
    float* __restrict normed = y;
    for (std::int64_t k = 0; k < n; k++) normed[k] = x[k] * inverse * weight[k];
  }
};

// RMSNormalization over the last dimension; with kAddsResidual, SkipSimplifiedLayerNormalization, which normalizes the
// sum of two inputs and also outputs the sum.
template <bool kAddsResidual>
class Norm : public Step {
 public:
  explicit Norm(const Node& node) : epsilon_(node.number("epsilon", 1e-5f)) { select_path<NormBody>(&function_); }
  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape& x = inputs[0].shape;
    if (x.rank < 1 || inputs[kWeight].shape.count() != x.last()) refuse("a norm over %lld elements cannot have %lld weights",
        static_cast<long long>(x.last()), static_cast<long long>(inputs[kWeight].shape.count()));
    if (kAddsResidual && inputs[1].shape != x) refuse("a norm cannot add tensors of different shapes");
    outputs[0] = x;
    if (kAddsResidual) outputs[kSum] = x;
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Made(*this, inputs, outputs));
  }

 private:
  static constexpr int kWeight = kAddsResidual ? 2 : 1, kSum = 3;

  struct Made : TokenRun {
    Made(const Norm& step, const Inputs& inputs, const Outputs& outputs)
        : TokenRun(rows_of(outputs[0].shape)), step(step), a(inputs[0], outputs[0].shape),
          b(inputs[kAddsResidual ? 1 : 0], outputs[0].shape), sum(outputs[kAddsResidual ? kSum : 0], outputs[0].shape),
          y(outputs[0], outputs[0].shape), weight(inputs[kWeight].template data<const float>()),
          n(outputs[0].shape.last()) {}
    void token(std::int64_t at) override {
      step.function_(a.at(at), kAddsResidual ? b.at(at) : nullptr, weight, step.epsilon_,
                     kAddsResidual ? sum.at(at) : nullptr, y.at(at), n);
    }
    const Norm& step;
    const Rows a, b, sum, y;
    const float* weight;
    const std::int64_t n;
  };

  const float epsilon_;
  void (*function_)(const float*, const float*, const float*, float, float*, float*, std::int64_t);
};

// ---------------------------------------------------------------------------------------------------- rotary embedding

struct RotaryBody {
  __attribute__((always_inline)) static inline void work(const float* __restrict x, const float* __restrict cosine,
                                                         const float* __restrict sine, float* __restrict y,
                                                         std::int64_t half) {
    for (std::int64_t i = 0; i < half; i++) {
      y[i] = cosine[i] * x[i] - sine[i] * x[half + i];
      y[half + i] = sine[i] * x[i] + cosine[i] * x[half + i];
    }
  }
};

// RotaryEmbedding of x [B, H, S, D] at positions [B, S], with cosine and sine tables [T, R / 2]. Only the first R <= D
// elements of a head are rotated; the others are copied.
class RotaryEmbedding : public Step {
 public:
  explicit RotaryEmbedding(const Node&) { select_path<RotaryBody>(&function_); }
  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape &x = inputs[0].shape, &table = inputs[1].shape, &at = inputs[3].shape;
    if (x.rank != 4 || table.rank != 2 || inputs[2].shape != table || at.rank != 2 || at.sizes[0] != x.sizes[0] ||
        at.sizes[1] != x.sizes[2] || 2 * table.sizes[1] > x.sizes[3]) {
      refuse("the shapes of heads, tables and positions of a RotaryEmbedding do not match");
    }
    outputs[0] = x;
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Made(*this, inputs, outputs[0]));
  }

 private:
  struct Made : TokenRun {
    Made(const RotaryEmbedding& step, const Inputs& inputs, const Tensor& y)
        : TokenRun(y.shape.sizes[0] * y.shape.sizes[2], Tokens::kHeadsFirst), step(step), inputs(inputs), y(y) {}
    void steer() override {
      const std::int64_t *positions = inputs[3].data<const std::int64_t>(), rows = inputs[1].shape.sizes[0];
      for (std::int64_t i = 0; i < inputs[3].shape.count(); i++) {
        if (positions[i] >= 0 && positions[i] < rows) continue;
        refuse("position %lld is out of range: the rotary table has %lld positions", static_cast<long long>(positions[i]), static_cast<long long>(rows));
      }
    }
    void token(std::int64_t at) override {
      const std::int64_t b = at / y.shape.sizes[2], s = at % y.shape.sizes[2], half = inputs[1].shape.sizes[1];
      const std::int64_t row = inputs[3].data<const std::int64_t>()[at] * half, rest = y.shape.sizes[3] - 2 * half;
      for (std::int64_t head = 0; head < y.shape.sizes[1]; head++) {
        const float* from = heads(inputs[0], b, head, s);
        float* to = heads(y, b, head, s);
        step.function_(from, inputs[1].data<const float>() + row, inputs[2].data<const float>() + row, to, half);
        if (rest > 0) std::memcpy(to + 2 * half, from + 2 * half, std::size_t(rest) * sizeof(float));
      }
    }
    static float* heads(const Tensor& tensor, std::int64_t b, std::int64_t head, std::int64_t s) {
      return tensor.data<float>() + b * tensor.strides[0] + head * tensor.strides[1] + s * tensor.strides[2];
    }
    const RotaryEmbedding& step;
    const Inputs inputs;
    const Tensor y;
  };

  void (*function_)(const float*, const float*, const float*, float*, std::int64_t);
};

// ------------------------------------------------------------------------------------------------------ copies of rows

// Concat along the last dimension.
class Concat : public Step {
 public:
  explicit Concat(const Node&) {}
  void shapes(const Inputs& inputs, Shape* outputs) const override {
    std::int64_t width = 0;
    for (const Tensor& each : inputs) {
      if (!each.is_there()) continue;
      if (each.shape.rank < 1 || each.shape.with_last(1) != inputs[0].shape.with_last(1)) {
        refuse("the inputs of a Concat differ in another dimension than the last");
      }
      width += each.shape.last();
    }
    outputs[0] = inputs[0].shape.with_last(width);
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Made(inputs, outputs[0]));
  }

 private:
  struct Part {
    Rows rows;
    std::int64_t count;
  };
  struct Made : TokenRun {
    Made(const Inputs& inputs, const Tensor& y) : TokenRun(rows_of(y.shape)), y(y, y.shape) {
      for (const Tensor& each : inputs) {
        if (each.is_there()) parts.push_back({Rows(each, each.shape), each.shape.last()});
      }
    }
    void token(std::int64_t at) override {
      float* to = y.at(at);
      for (const Part& each : parts) {
        std::memcpy(to, each.rows.at(at), std::size_t(each.count) * sizeof(float));
        to += each.count;
      }
    }
    std::vector<Part> parts;
    const Rows y;
  };
};

// Gather along the first dimension.
class Gather : public Kernel {
 public:
  explicit Gather(const Node&) {}
  void shapes(const Inputs& inputs, Shape* outputs) const override {
    const Shape& x = inputs[0].shape;
    if (x.rank < 1) refuse("the data of a Gather is a scalar");
    Shape y = inputs[1].shape;
    for (int i = 1; i < x.rank; i++) y = y.with(x.sizes[i]);
    outputs[0] = y;
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Made(inputs, outputs[0]));
  }

 private:
  struct Made : Run {
    Made(const Inputs& inputs, const Tensor& y)
        : x(inputs[0]), at(inputs[1]), y(y.data<float>()),
          width(x.shape.sizes[0] == 0 ? 0 : x.shape.count() / x.shape.sizes[0]) {}
    void steer() override {
      const std::int64_t rows = x.shape.sizes[0];
      for (std::int64_t i = 0; i < at.shape.count(); i++) {
        const std::int64_t row = at.data<const std::int64_t>()[i];
        if (row >= -rows && row < rows) continue;
        refuse("row %lld is out of range: the matrix has %lld rows", static_cast<long long>(row), static_cast<long long>(rows));
      }
    }
    int phases() const override { return 1; }
    std::size_t pieces(int) const override { return std::size_t(at.shape.count()); }
    void work(int, std::size_t piece) override {
      std::int64_t row = at.data<const std::int64_t>()[piece];
      if (row < 0) row += x.shape.sizes[0];
      std::memcpy(y + std::int64_t(piece) * width, x.data<const float>() + row * width,
                  std::size_t(width) * sizeof(float));
    }
    const Tensor x, at;
    float* y;
    const std::int64_t width;
  };
};

template <class Made>
std::unique_ptr<Kernel> make(const Node& node) {
  return std::unique_ptr<Kernel>(new Made(node));
}

// The kernels by the operator names of ONNX and ONNX Runtime.
inline const std::vector<Op>& step_ops() {
  const Operand number{ort::kFloat32, false, -1, -1}, optional{ort::kFloat32, true, -1, -1};
  const Operand position{ort::kInt64, false, -1, -1};
  static const std::vector<Op> ops = {
      {"Add", {number, number}, {number}, make<BinaryOp<Sum>>},
      {"Sub", {number, number}, {number}, make<BinaryOp<Difference>>},
      {"Mul", {number, number}, {number}, make<BinaryOp<Product>>},
      {"Div", {number, number}, {number}, make<BinaryOp<Quotient>>},
      {"Sigmoid", {number}, {number}, make<UnaryOp<Sigmoid>>},
      {"Tanh", {number}, {number}, make<UnaryOp<Tanh>>},
      {"Gelu", {number}, {number}, make<UnaryOp<GeluByTanh>>},
      {"RMSNormalization", {number, number}, {number}, make<Norm<false>>},
      {"SkipSimplifiedLayerNormalization", {number, number, number}, {number, optional, optional, number},
       make<Norm<true>>},
      {"Concat", {number, number, optional, optional, optional, optional, optional, optional}, {number}, make<Concat>},
      {"Gather", {number, position}, {number}, make<Gather>},
      {"RotaryEmbedding", {number, number, number, position}, {number}, make<RotaryEmbedding>},
  };
  return ops;
}

}  // namespace steps
}  // namespace peagle
