// Shapes, tensors, scratch memory, and the exception that is reported to ONNX Runtime.

#include "interface.h"

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
  bool operator==(const Shape& other) const {
    return rank == other.rank && std::equal(sizes, sizes + rank, other.sizes);
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }
};

struct Tensor {
  Shape shape;
  // Strides in elements. The last dimension is always dense; other strides are arbitrary only in inputs of kernels with
  // takes_views().
  std::int64_t strides[kMaxRank] = {};
  int type = 0;  // ort::Type; 0 for an absent operand
  void* address = nullptr;

  Tensor() = default;
  Tensor(const Shape& shape, int type, void* address) : shape(shape), type(type), address(address) {
    std::int64_t stride = 1;
    for (int i = shape.rank - 1; i >= 0; i--) {
      strides[i] = stride;
      stride *= shape.sizes[i];
    }
  }

  bool is_there() const { return type != 0; }
  template <class Number>
  Number* data() const {
    return static_cast<Number*>(address);
  }
  std::size_t bytes() const { return std::size_t(shape.count()) * ort::size_of(type); }
};

// Uninitialized memory, aligned to a cache line.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : bytes_(bytes), memory_(bytes == 0 ? nullptr : new char[bytes + kLine]) {}
  std::size_t bytes() const { return bytes_; }
  void* get() const {
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.get());
    return reinterpret_cast<void*>((at + kLine - 1) / kLine * kLine);
  }

 private:
  static constexpr std::size_t kLine = 64;
  std::size_t bytes_;
  std::unique_ptr<char[]> memory_;
};

}  // namespace peagle
