// The columns of the window that each column sees, read from the input `ancestors`, of which only entries for earlier
// columns count.
//
// A row in which every column sees all earlier columns is a chain. Chains need no paths, because what their columns
// see is contiguous in the cache. The same holds for a column of a tree that sees all earlier columns.

#include "tensor.h"

namespace peagle {
namespace attention {

class AncestorPaths {
 public:
  AncestorPaths(const Tensor& ancestors, std::int64_t columns) : ancestors_(ancestors), columns_(columns) {}

  // Reads the paths of row b of `batch`; returns true if the row is a tree.
  bool read_row(std::int64_t b, std::int64_t batch) {
    if (!ancestors_.is_there() || is_chain(b)) return false;
    visible_columns_.resize(std::size_t(batch * columns_ * columns_));
    counts_.resize(std::size_t(batch * columns_));
    for (std::int64_t column = 0; column < columns_; column++) {
      std::int64_t& count = counts_[std::size_t(b * columns_ + column)];
      count = column + 1;
      if (sees_all_earlier(b, column)) continue;
      const bool* is_ancestor = ancestors_of(b, column);
      std::int32_t* path = visible_columns_.data() + (b * columns_ + column) * columns_;
      count = 0;
      for (std::int64_t earlier = 0; earlier < column; earlier++) {
        if (is_ancestor[earlier]) path[count++] = std::int32_t(earlier);
      }
      path[count++] = std::int32_t(column);
    }
    return true;
  }

  // The number of columns that a column of a tree sees, itself included.
  std::int64_t count(std::int64_t b, std::int64_t column) const { return counts_[std::size_t(b * columns_ + column)]; }
  // The columns that it sees, in order; only set if it does not see all earlier columns.
  const std::int32_t* columns_of(std::int64_t b, std::int64_t column) const {
    return visible_columns_.data() + (b * columns_ + column) * columns_;
  }

 private:
  const bool* ancestors_of(std::int64_t b, std::int64_t column) const {
    return ancestors_.data<const bool>() + (b * columns_ + column) * columns_;
  }
  bool sees_all_earlier(std::int64_t b, std::int64_t column) const {
    return std::memchr(ancestors_of(b, column), 0, std::size_t(column)) == nullptr;
  }
  bool is_chain(std::int64_t b) const {
    for (std::int64_t column = columns_ - 1; column > 0; column--) {
      if (!sees_all_earlier(b, column)) return false;
    }
    return true;
  }

  const Tensor ancestors_;
  const std::int64_t columns_;
  std::vector<std::int32_t> visible_columns_;
  std::vector<std::int64_t> counts_;
};

}  // namespace attention
}  // namespace peagle
