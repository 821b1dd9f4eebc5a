// AcceptPrefix: the token of every column by itself, by any thread (drawing.h); then what of them a row emits.

#include "emission.h"

namespace peagle {

class AcceptPrefix : public Kernel {
 public:
  AcceptPrefix(const AcceptPrefixAttributes&, const Node&) : decide_(emission::decide_with(instructions())) {}

  void shapes(const Inputs& inputs, Shape* outputs) const override { emission::check_shapes(inputs, outputs); }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Chain(decide_, inputs, outputs));
  }

 private:
  class Chain : public emission::Emission {
   public:
    Chain(emission::Decide decide, const Inputs& inputs, const Outputs& outputs)
        : Emission(decide, inputs, outputs), ends_(new std::atomic<std::int64_t>[std::size_t(rows_)]) {}

    void steer() override {
      for (std::int64_t row = 0; row < rows_; row++) ends_[std::size_t(row)] = drafts(row);
    }

   private:
    void decide(std::int64_t row, std::int64_t at) override {
      std::atomic<std::int64_t>& end = ends_[std::size_t(row)];
      if (at > end) return;  // a column before ends the row
      if (decided(row, at, draft_ids(row) + at, at < drafts(row)).kept >= 0) return;
      for (std::int64_t before = end; at < before && !end.compare_exchange_weak(before, at);) {}
    }

    std::int64_t emit_decided(std::int64_t row, std::int32_t* tokens) const override {
      const std::int64_t end = ends_[std::size_t(row)];
      for (std::int64_t at = 0; at < end; at++) tokens[at] = std::int32_t(draft_ids(row)[at]);
      tokens[end] = decision(row, end).token;
      return end + 1;
    }

    const std::unique_ptr<std::atomic<std::int64_t>[]> ends_;  // the last column that a row can emit, for all that is known
  };

  const emission::Decide decide_;
};

}  // namespace peagle
