// AcceptTree: threads select the token of every reachable column (token_selector.h); then one thread walks the tree.

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
    return std::unique_ptr<Run>(new TreeRun(decide_, inputs, outputs));
  }

 private:
  // Column 0 of a row is the newest committed token, the root; columns 1 .. drafts(row) are drafts.
  class TreeRun : public emission::Emission {
   public:
    TreeRun(emission::Decide decide, const Inputs& inputs, const Outputs& outputs)
        : Emission(decide, inputs, outputs),
          parents_(std::size_t(columns_)),
          children_end_(std::size_t(rows_ * columns_)),
          children_(std::size_t(rows_ * columns_)),
          ids_(std::size_t(rows_ * columns_)),
          is_unreachable_(new std::atomic<bool>[std::size_t(rows_ * columns_)]) {}

    void steer() override {
      for (std::int64_t row = 0; row < rows_; row++) {
        for (std::int64_t at = 0; at < columns_; at++) is_unreachable_[std::size_t(row * columns_ + at)] = false;
        find_children(row);
      }
    }

   private:
    struct Children {
      const std::int32_t* columns;
      const std::int64_t* ids;
      int count;
    };

    // Returns the parent of a draft: the last earlier draft that it sees, or 0.
    std::int32_t parent(std::int64_t row, std::int64_t at) const {
      const std::int64_t column = newest(row) + at;
      const bool* is_ancestor =
          inputs_[emission::kAncestors].data<const bool>() + (row * width_ + column) * width_ + newest(row);
      do at--;
      while (at > 0 && !is_ancestor[at]);
      return std::int32_t(at);
    }

    // Sorts drafts by parent, then by column (counting sort).
    void find_children(std::int64_t row) {
      std::int32_t* children_end = children_end_.data() + row * columns_;
      std::fill(children_end, children_end + columns_, 0);
      for (std::int64_t at = 1; at <= drafts(row); at++) {
        parents_[std::size_t(at)] = parent(row, at);
        for (std::int64_t other = parents_[std::size_t(at)] + 1; other < columns_; other++) children_end[other]++;
      }
      for (std::int64_t at = 1; at <= drafts(row); at++) {  // turns the start of each range into its end
        const auto place = std::size_t(row * columns_ + children_end[parents_[std::size_t(at)]]++);
        children_[place] = std::int32_t(at);
        ids_[place] = draft_ids(row)[at - 1];
      }
    }
    Children children(std::int64_t row, std::int64_t at) const {
      const std::int32_t* children_end = children_end_.data() + row * columns_;
      const std::int64_t first = at > 0 ? children_end[at - 1] : 0;
      return {children_.data() + row * columns_ + first, ids_.data() + row * columns_ + first,
              int(children_end[at] - first)};
    }

    void decide(std::int64_t row, std::int64_t at) override {
      const Children next = children(row, at);
      std::atomic<bool>* is_unreachable = is_unreachable_.get() + row * columns_;
      const int kept = is_unreachable[at] ? -1 : decide_column(row, at, next.ids, next.count).kept;
      for (int i = 0; i < next.count; i++) {
        if (i != kept) is_unreachable[next.columns[i]] = true;
      }
    }

    std::int64_t emit_tokens(std::int64_t row, std::int32_t* tokens, std::int32_t* path) const override {
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

    std::vector<std::int32_t> parents_;       // of the current row's drafts
    std::vector<std::int32_t> children_end_;  // [rows, columns]: the end of a column's range in children_
    std::vector<std::int32_t> children_;      // [rows, columns]
    std::vector<std::int64_t> ids_;           // [rows, columns]: token ids of children_
    const std::unique_ptr<std::atomic<bool>[]> is_unreachable_;  // set as soon as a column is known to be off the path
  };

  const emission::Decide decide_;
};

}  // namespace peagle
