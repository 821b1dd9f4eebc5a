// What an op's kernel.cpp is written against: tensors, attributes, refusals, threads.
//
// A kernel is a class that is called like its op.  Its constructor takes the op's attributes (a struct that is made from
// the spec) and the node; `void run(Call&) const` is one run.  Both refuse by throwing, which ONNX Runtime is told.

namespace peagle {

struct Refusal {
  std::string why;
};

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void refuse(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Refusal{text};
}

// Throws what ONNX Runtime complains of.
inline void check(ort::Status* status) {
  if (status == nullptr) return;
  Refusal refusal{ort::call(ort::kGetErrorMessage, status)};
  ort::call(ort::kReleaseStatus, status);
  throw refusal;
}

constexpr int kMaxRank = 8;

struct Shape {
  std::int64_t sizes[kMaxRank] = {};
  int rank = 0;

  std::int64_t count() const {
    std::int64_t product = 1;
    for (int i = 0; i < rank; i++) product *= sizes[i];
    return product;
  }
  std::int64_t last() const { return rank > 0 ? sizes[rank - 1] : 1; }
  Shape with_last(std::int64_t size) const {
    Shape result = *this;
    result.sizes[rank - 1] = size;
    return result;
  }
  Shape with(std::int64_t size) const {
    if (rank == kMaxRank) refuse("more than %d dimensions", kMaxRank);
    Shape result = *this;
    result.sizes[result.rank++] = size;
    return result;
  }
};

struct Tensor {
  Shape shape;
  int type = 0;
  void* address = nullptr;

  template <class Number>
  Number* data() const {
    return static_cast<Number*>(address);
  }
};

inline Tensor tensor_of(const ort::Value* value) {
  if (value == nullptr) refuse("an input that the kernel needs is absent");
  Tensor result;
  ort::TensorInfo* owned = nullptr;
  check(ort::call(ort::kGetTensorTypeAndShape, value, &owned));
  const std::unique_ptr<ort::TensorInfo, void (*)(ort::TensorInfo*)> info(
      owned, [](ort::TensorInfo* each) { ort::call(ort::kReleaseTensorInfo, each); });
  std::size_t rank = 0;
  check(ort::call(ort::kGetTensorElementType, info.get(), &result.type));
  check(ort::call(ort::kGetDimensionsCount, info.get(), &rank));
  if (rank > std::size_t(kMaxRank)) refuse("a tensor has more than %d dimensions", kMaxRank);
  result.shape.rank = int(rank);
  check(ort::call(ort::kGetDimensions, info.get(), result.shape.sizes, rank));
  check(ort::call(ort::kGetTensorMutableData, const_cast<ort::Value*>(value), &result.address));
  return result;
}

// A node, while its kernel is made.
class Node {
 public:
  explicit Node(const ort::KernelInfo* info) : info_(info) {}

  std::string text(const char* name, const char* otherwise) const {
    char buffer[256] = {};
    std::size_t size = sizeof buffer;
    return found(ort::call(ort::kGetAttributeString, info_, name, buffer, &size)) ? buffer : otherwise;
  }
  std::int64_t whole(const char* name, std::int64_t otherwise) const {
    std::int64_t value = 0;
    return found(ort::call(ort::kGetAttributeInt64, info_, name, &value)) ? value : otherwise;
  }
  float number(const char* name, float otherwise) const {
    float value = 0;
    return found(ort::call(ort::kGetAttributeFloat, info_, name, &value)) ? value : otherwise;
  }
  // An input that is a constant of the graph.  It stays where it is for as long as the kernel lives.
  Tensor constant(std::size_t at, const char* name) const {
    int is_constant = 0;
    const ort::Value* value = nullptr;
    check(ort::call(ort::kGetConstantInput, info_, at, &is_constant, &value));
    if (!is_constant) refuse("%s must be a constant of the graph", name);
    return tensor_of(value);
  }

 private:
  // Absent attributes have the spec's default; the compiler has checked the others.
  static bool found(ort::Status* status) {
    if (status == nullptr) return true;
    ort::call(ort::kReleaseStatus, status);
    return false;
  }
  const ort::KernelInfo* info_;
};

// One run of a node.
class Call {
 public:
  explicit Call(ort::KernelContext* context) : context_(context) {}

  Tensor input(std::size_t at) const {
    const ort::Value* value = nullptr;
    check(ort::call(ort::kGetInput, context_, at, &value));
    return tensor_of(value);
  }
  Tensor output(std::size_t at, const Shape& shape) {
    ort::Value* value = nullptr;
    check(ort::call(ort::kGetOutput, context_, at, shape.sizes, std::size_t(shape.rank), &value));
    Tensor result;
    result.shape = shape;
    check(ort::call(ort::kGetTensorMutableData, value, &result.address));
    return result;
  }
  std::size_t inputs() const {
    std::size_t count = 0;
    check(ort::call(ort::kGetInputCount, context_, &count));
    return count;
  }
  std::size_t outputs() const {
    std::size_t count = 0;
    check(ort::call(ort::kGetOutputCount, context_, &count));
    return count;
  }
  // work(0) .. work(pieces - 1), each once, by however many of the session's threads come; they must not throw.
  template <class Work>
  void parallel(std::size_t pieces, const Work& work) {
    if (pieces == 0) return;
    if (pieces == 1) return work(0);  // waking a thread costs more
    const auto piece = [](void* user, std::size_t at) { (*static_cast<const Work*>(user))(at); };
    check(ort::call(ort::kParallelFor, context_, piece, pieces, std::size_t(0),
                    const_cast<void*>(static_cast<const void*>(&work))));
  }

 private:
  ort::KernelContext* context_;
};

}  // namespace peagle
