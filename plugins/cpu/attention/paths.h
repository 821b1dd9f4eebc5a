// The paths of a window: which of its columns each of them sees.
//
// As `ancestors` has it, of which only what is before a column counts.  A row whose columns see all before them is a chain,
// and nothing is kept of it: what they see lies side by side in the cache.  So does what such a column of a tree sees.

#include "tensor.h"

namespace peagle {
namespace attention {

class Paths {
 public:
  Paths(const Tensor& ancestors, std::int64_t columns) : ancestors_(ancestors), columns_(columns) {}

  // Finds those of row b of `batch`, and whether it is a tree.
  bool find(std::int64_t b, std::int64_t batch) {
    if (!ancestors_.is_there() || is_chain(b)) return false;
    columns_seen_.resize(std::size_t(batch * columns_ * columns_));
    counts_.resize(std::size_t(batch * columns_));
    for (std::int64_t own = 0; own < columns_; own++) {
      std::int64_t& count = counts_[std::size_t(b * columns_ + own)];
      count = own + 1;
      if (sees_all(b, own)) continue;
      const bool* names = named(b, own);
      std::int32_t* path = columns_seen_.data() + (b * columns_ + own) * columns_;
      count = 0;
      for (std::int64_t column = 0; column < own; column++) {
        if (names[column]) path[count++] = std::int32_t(column);
      }
      path[count++] = std::int32_t(own);
    }
    return true;
  }

  // Of a row that is a tree: how many columns of the window a column sees, itself included, ..
  std::int64_t count(std::int64_t b, std::int64_t column) const { return counts_[std::size_t(b * columns_ + column)]; }
  // .. and which, in their order, where they are not all up to it.
  const std::int32_t* of(std::int64_t b, std::int64_t column) const {
    return columns_seen_.data() + (b * columns_ + column) * columns_;
  }

 private:
  const bool* named(std::int64_t b, std::int64_t column) const {
    return ancestors_.data<const bool>() + (b * columns_ + column) * columns_;
  }
  bool sees_all(std::int64_t b, std::int64_t column) const {
    return std::memchr(named(b, column), 0, std::size_t(column)) == nullptr;
  }
  bool is_chain(std::int64_t b) const {
    for (std::int64_t column = columns_ - 1; column > 0; column--) {
      if (!sees_all(b, column)) return false;
    }
    return true;
  }

  const Tensor ancestors_;
  const std::int64_t columns_;
  std::vector<std::int32_t> columns_seen_;
  std::vector<std::int64_t> counts_;
};

}  // namespace attention
}  // namespace peagle
