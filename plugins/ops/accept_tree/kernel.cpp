// AcceptTree: the token of every column that a row may come to, by any thread (drawing.h); then the walk from the root.

#include "emission.h"

namespace peagle {

class AcceptTree : public Kernel {
 public:
  AcceptTree(const AcceptTreeAttributes&, const Node&) : decide_(emission::decide_with(instructions())) {}

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    emission::check_shapes(inputs, outputs);
    outputs[2] = outputs[0];
    const Shape& ids = inputs[emission::kInputIds].shape;
    if (inputs[emission::kAncestors].shape != ids.with(ids.sizes[1])) {
      refuse("ancestors must have a matrix for each of the %lld rows, over %lld columns",
             static_cast<long long>(ids.sizes[0]), static_cast<long long>(ids.sizes[1]));
    }
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Tree(decide_, inputs, outputs));
  }

 private:
  // Columns of a row are 0, which is no draft, and 1 .. drafts(row).
  class Tree : public emission::Emission {
   public:
    Tree(emission::Decide decide, const Inputs& inputs, const Outputs& outputs)
        : Emission(decide, inputs, outputs),
          parents_(std::size_t(columns_)),
          behind_(std::size_t(rows_ * columns_)),
          children_(std::size_t(rows_ * columns_)),
          ids_(std::size_t(rows_ * columns_)),
          is_off_(new std::atomic<bool>[std::size_t(rows_ * columns_)]) {}

    void steer() override {
      for (std::int64_t row = 0; row < rows_; row++) {
        for (std::int64_t at = 0; at < columns_; at++) is_off_[std::size_t(row * columns_ + at)] = false;
        find_children(row);
      }
    }

   private:
    struct Children {
      const std::int32_t* columns;
      const std::int64_t* ids;
      int count;
    };

    // The last earlier draft that the row of a draft names; 0 if it names none.
    std::int32_t parent(std::int64_t row, std::int64_t at) const {
      const std::int64_t column = newest(row) + at;
      const bool* names = inputs_[emission::kAncestors].data<const bool>() + (row * width_ + column) * width_ + newest(row);
      do at--;
      while (at > 0 && !names[at]);
      return std::int32_t(at);
    }

    // Drafts in the order of their parents, and of columns where that is the same.
    void find_children(std::int64_t row) {
      std::int32_t* behind = behind_.data() + row * columns_;
      std::fill(behind, behind + columns_, 0);
      for (std::int64_t at = 1; at <= drafts(row); at++) {
        parents_[std::size_t(at)] = parent(row, at);
        for (std::int64_t other = parents_[std::size_t(at)] + 1; other < columns_; other++) behind[other]++;
      }
      for (std::int64_t at = 1; at <= drafts(row); at++) {  // where children begin goes on to where they end
        const auto place = std::size_t(row * columns_ + behind[parents_[std::size_t(at)]]++);
        children_[place] = std::int32_t(at);
        ids_[place] = draft_ids(row)[at - 1];
      }
    }
    Children children(std::int64_t row, std::int64_t at) const {
      const std::int32_t* behind = behind_.data() + row * columns_;
      const std::int64_t first = at > 0 ? behind[at - 1] : 0;
      return {children_.data() + row * columns_ + first, ids_.data() + row * columns_ + first, int(behind[at] - first)};
    }

    void decide(std::int64_t row, std::int64_t at) override {
      const Children next = children(row, at);
      std::atomic<bool>* is_off = is_off_.get() + row * columns_;
      const int kept = is_off[at] ? -1 : decided(row, at, next.ids, next.count).kept;
      for (int i = 0; i < next.count; i++) {
        if (i != kept) is_off[next.columns[i]] = true;
      }
    }

    std::int64_t emit_decided(std::int64_t row, std::int32_t* tokens, std::int32_t* path) const override {
      std::int64_t at = 0, count = 0;
      for (;;) {
        path[count] = std::int32_t(newest(row) + at);
        const int kept = decision(row, at).kept;
        if (kept < 0) break;
        const Children next = children(row, at);
        tokens[count++] = std::int32_t(next.ids[kept]);
        at = next.columns[kept];
      }
      tokens[count] = decision(row, at).token;
      return count + 1;
    }

    std::vector<std::int32_t> parents_;   // of the row that is looked at
    std::vector<std::int32_t> behind_;    // of each column, where its children end in ..
    std::vector<std::int32_t> children_;  // .. this
    std::vector<std::int64_t> ids_;       // of children
    const std::unique_ptr<std::atomic<bool>[]> is_off_;  // columns that no walk comes to, for all that is known
  };

  const emission::Decide decide_;
};

}  // namespace peagle
