// A run of nodes as one: their kernels, step by step, in one parallel loop.

#include "plan.h"
#include "schedule.h"
#include "shared_scratch.h"

namespace peagle {

// A view becomes dense.
class DenseCopy : public steps::TokenRun {
 public:
  DenseCopy(const Tensor& from, const Tensor& to)
      : TokenRun(steps::rows_of(to.shape)), from_(from, to.shape), to_(to, to.shape), count_(to.shape.last()) {}
  void token(std::int64_t at) override {
    std::memcpy(to_.at(at), from_.at(at), std::size_t(count_) * sizeof(float));
  }

 private:
  const steps::Rows from_, to_;
  const std::int64_t count_;
};

class FusedRegion : public Kernel {
 public:
  FusedRegion(const FusedRegionAttributes& attributes, const Node& node) : program_(attributes.program, int(attributes.inputs)) {
    for (const StepText& text : program_.steps) {
      LoadedStep step{text, nullptr, nullptr, 0};
      if (!is_view_step(text.op)) {
        step.op = &op_of_step(text.op);
        step.kernel = step.op->make(StepNode(text, node, program_.inputs));
      }
      if (text.op == "Reshape" && text.inputs.size() > 1) {
        if (text.inputs[1] < 0 || text.inputs[1] >= program_.inputs) refuse("a Reshape to sizes that a step makes");
        sizes_.push_back(text.inputs[1]);
      }
      steps_.push_back(std::move(step));
    }
    for (int i = 0; i < program_.inputs; i++) {
      if (!node.constant_or_none(std::size_t(i)).is_there()) changing_.push_back(i);
    }
    int end = int(steps_.size()) - 1;
    for (int i = end; i >= 0; i--) {
      LoadedStep& step = steps_[std::size_t(i)];
      if (step.kernel != nullptr && !step.kernel->is_token_wise()) end = i;
      step.end = end;
    }
  }

  void shapes(const Inputs& inputs, Shape* outputs) const override {
    std::unique_ptr<Workspace> workspace = workspace_of(inputs);
    for (std::size_t i = 0; i < program_.outputs.size(); i++) {
      outputs[i] = workspace->plan->value(program_.outputs[i]).tensor.shape;
    }
    keep(std::move(workspace));
  }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    std::unique_ptr<Workspace> workspace = workspace_of(inputs);
    workspace->begin(*this, inputs, outputs);
    return std::unique_ptr<Run>(new Walkers(*this, std::move(workspace)));
  }

 private:
  // All that a run has, kept for the next one: its memory, where what lies for inputs of some shapes, and the runs of
  // steps over what lies where it did.
  struct Workspace {
    std::vector<std::int64_t> known;  // what the plan is for
    std::unique_ptr<Plan> plan;
    std::unique_ptr<Scratch> numbers, scratch;
    std::size_t shared_bytes = 0;  // of what steps have one after the other
    std::vector<void*> addresses;                     // what the runs are over
    std::vector<std::unique_ptr<Run>> runs;
    std::vector<std::pair<Run*, int>> steered;  // those that may be of other phases and scratch next time
    Walk walk;

    std::size_t bytes() const {
      return (numbers != nullptr ? numbers->bytes() : 0) + (scratch != nullptr ? scratch->bytes() : 0);
    }
    // Others may use its memory, and its runs are made anew next time.
    void lend() {
      addresses.clear();
      runs.clear();
      SharedScratch::keep(std::move(numbers));
      SharedScratch::keep(std::move(scratch));
    }

    void begin(const FusedRegion& region, const Inputs& inputs, const Outputs& outputs) {
      for (const Plan::Alias& alias : plan->aliases) {
        const Tensor& from = inputs[std::size_t(alias.input)];
        const Tensor to = outputs[std::size_t(alias.output - plan->output_buffer(0))];
        if (from.address != to.address) std::memcpy(to.address, from.address, from.bytes());
      }
      if (!again(inputs, outputs)) anew(region, inputs, outputs);
      walk.ready();
    }

   private:
    // Whether the runs of last time do.
    bool again(const Inputs& inputs, const Outputs& outputs) {
      std::size_t at = 0;
      bool same = addresses.size() == inputs.size() + outputs.size();
      addresses.resize(inputs.size() + outputs.size());
      for (const std::vector<Tensor>* tensors : {&inputs, &outputs}) {
        for (const Tensor& each : *tensors) {
          same = same && addresses[at] == each.address;
          addresses[at++] = each.address;
        }
      }
      if (!same) return false;
      for (const auto& each : runs) each->steer();
      for (const auto& each : steered) {
        if (each.first->phases() != each.second || each.first->scratch_bytes() > shared_bytes) return false;
      }
      return true;
    }

    void anew(const FusedRegion& region, const Inputs& inputs, const Outputs& outputs) {
      runs.clear();
      steered.clear();
      walk.clear();
      if (numbers == nullptr) numbers = SharedScratch::taken(plan->bytes);
      Schedule schedule{*this, inputs, outputs};
      std::size_t copy = 0;
      for (int i = 0; i <= int(region.steps_.size()); i++) {
        for (; copy < plan->copies.size() && plan->copies[copy].before == i; copy++) {
          const Plan::Copy& each = plan->copies[copy];
          const Tensor from = schedule.tensor(each.from), to = schedule.tensor(each.to);
          schedule.add(new DenseCopy(from, to), {from}, {to}, true);
        }
        if (i < int(region.steps_.size())) schedule.add(region.steps_[std::size_t(i)], i);
      }
      if (scratch == nullptr || scratch->bytes() < schedule.scratch_bytes()) {
        scratch = SharedScratch::taken(schedule.scratch_bytes());
      }
      schedule.place_scratch();
    }
  };

  // Workspaces that nobody uses, for any thread.  Rounds take turns among a few shapes (a drafter is given what was accepted,
  // requests come and go), and a plan takes as long as a small graph.  Of the large ones only the last is kept, and that
  // without its memory: a model with experts is a region a layer.
  class Spares {
   public:
    Spares() { SharedScratch::users()++; }
    ~Spares() {
      for (auto& each : places_) delete each.load();
      if (--SharedScratch::users() == 0) SharedScratch::clear();
    }
    Spares(const Spares&) = delete;
    // The one for these shapes, or none.
    std::unique_ptr<Workspace> taken(const std::vector<std::int64_t>& known) {
      for (auto& each : places_) {
        std::unique_ptr<Workspace> found(each.exchange(nullptr));
        if (found == nullptr) continue;
        if (found->known == known) return found;
        Workspace* none = nullptr;
        if (each.compare_exchange_strong(none, found.get())) found.release();
      }
      return nullptr;
    }
    void keep(std::unique_ptr<Workspace> workspace) {
      if (workspace->bytes() > kLarge) {
        workspace->lend();
        delete places_[0].exchange(workspace.release());
        return;
      }
      for (std::size_t i = 1; i < kPlaces; i++) {
        Workspace* none = nullptr;
        if (places_[i].compare_exchange_strong(none, workspace.get())) {
          workspace.release();
          return;
        }
      }
      delete places_[1 + oldest_.fetch_add(1) % (kPlaces - 1)].exchange(workspace.release());
    }

   private:
    static constexpr std::size_t kPlaces = 17, kLarge = 2 << 20;
    std::atomic<Workspace*> places_[kPlaces] = {};
    std::atomic<std::size_t> oldest_{0};
  };

  // Runs become stages.  Scratch of steps that do not only look at their token lies in one place: between two of them
  // everybody waits.  That of the others lies behind it, until a group ends.
  struct Schedule {
    Workspace& space;
    const Inputs& inputs;
    const Outputs& outputs;
    Tokens open = Tokens::kNotAlone;  // of the last stage: what may join it
    std::size_t pieces = 0;
    std::vector<Tensor> written{};  // in the last stage
    std::vector<std::pair<Run*, std::size_t>> placed{};
    std::size_t most = 0, behind = 0, most_behind = 0;

    Tensor tensor(int value) const {
      Tensor result;
      if (value < 0) return result;
      const Value& known = space.plan->value(value);
      result = known.tensor;
      char* base = nullptr;
      if (known.buffer < int(inputs.size())) {
        base = inputs[std::size_t(known.buffer)].data<char>();
      } else if (known.buffer < int(inputs.size() + outputs.size())) {
        base = outputs[std::size_t(known.buffer) - inputs.size()].data<char>();
      } else {
        base = static_cast<char*>(space.numbers->get()) + space.plan->buffers[std::size_t(known.buffer)].offset;
      }
      result.address = base + std::size_t(known.offset) * ort::size_of(result.type);
      return result;
    }

    void add(const LoadedStep& step, int at) {
      if (step.kernel == nullptr) return;
      Inputs from(step.op->inputs.size());
      Outputs to(step.op->outputs.size());
      const std::vector<int>& given = space.plan->inputs_of(at);
      for (std::size_t i = 0; i < given.size(); i++) from[i] = tensor(given[i]);
      for (std::size_t i = 0; i < to.size(); i++) to[i] = tensor(space.plan->outputs_of(at)[i]);
      add(step.kernel->start(from, to).release(), from, to, step.kernel->is_token_wise());
    }

    void add(Run* owned, const std::vector<Tensor>& from, const std::vector<Tensor>& to, bool is_token_wise) {
      space.runs.emplace_back(owned);
      Run& run = *owned;
      run.steer();
      const int phases = run.phases();
      if (!is_token_wise) space.steered.emplace_back(&run, phases);
      for (int phase = 0; phase < phases; phase++) {
        const Tokens order = run.tokens(phase);
        const bool is_alone = order == Tokens::kNotAlone || (!is_token_wise && phase + 1 == phases);
        const bool joins = !is_alone && open == order && run.pieces(phase) == pieces && (phase > 0 || fits(from));
        space.walk.add(&run, phase, joins);
        if (!joins) written.clear();
        written.insert(written.end(), to.begin(), to.end());
        open = is_alone ? Tokens::kNotAlone : order;
        pieces = run.pieces(phase);
      }
      constexpr std::size_t kLine = 64;
      const std::size_t bytes = (run.scratch_bytes() + kLine - 1) / kLine * kLine;
      placed.emplace_back(&run, is_token_wise ? behind + 1 : 0);
      if (is_token_wise) {
        behind += bytes;
        most_behind = std::max(most_behind, behind);
      } else {
        most = std::max(most, bytes);
        behind = 0;
      }
    }

    // Whether what a token of these reads of the last stage is what the same token wrote.
    bool fits(const std::vector<Tensor>& from) const {
      if (pieces <= 1) return true;
      for (const Tensor& read : from) {
        for (const Tensor& wrote : written) {
          if (read.is_there() && wrote.is_there() && overlap(read, wrote) && !is_same_token(read, wrote)) return false;
        }
      }
      return true;
    }
    static bool overlap(const Tensor& read, const Tensor& wrote) {
      const char *a = read.data<const char>(), *b = wrote.data<const char>();
      return a < b + wrote.bytes() && b < a + extent(read);
    }
    static std::size_t extent(const Tensor& tensor) {
      std::int64_t last = 0;
      for (int i = 0; i < tensor.shape.rank; i++) last += (tensor.shape.sizes[i] - 1) * tensor.strides[i];
      return std::size_t(last + 1) * ort::size_of(tensor.type);
    }
    bool is_same_token(const Tensor& read, const Tensor& wrote) const {
      if (!is_dense(wrote)) return false;
      if (read.address == wrote.address && read.shape == wrote.shape && is_dense(read)) return true;
      if (open != Tokens::kRows) return false;
      // Rows that lie one behind the other, and views that stay within them.
      const std::int64_t row = wrote.shape.count() / std::int64_t(pieces);
      std::int64_t within = read.data<const float>() - wrote.data<const float>(), rows = 1;
      if (within < 0) return false;
      for (int i = read.shape.rank - 1; i >= 0; i--) {
        const std::int64_t size = read.shape.sizes[i];
        if (size == 1) continue;
        if (rows == 1 && read.strides[i] < row) {
          within += (size - 1) * read.strides[i];
        } else if (read.strides[i] == row * rows) {
          rows *= size;
        } else {
          return false;
        }
      }
      return within < row && rows == std::int64_t(pieces);
    }

    std::size_t scratch_bytes() const { return most + most_behind; }
    void place_scratch() const {
      space.shared_bytes = most;
      char* base = static_cast<char*>(space.scratch->get());
      for (const auto& each : placed) each.first->use_scratch(each.second == 0 ? base : base + most + each.second - 1);
    }
  };

  class Walkers : public Run {
   public:
    Walkers(const FusedRegion& region, std::unique_ptr<Workspace> workspace)
        : region_(region), workspace_(std::move(workspace)) {}
    ~Walkers() override { region_.keep(std::move(workspace_)); }
    int phases() const override { return 1; }
    // More than there are threads: those that come when all is done go at once.
    std::size_t pieces(int) const override { return kMostThreads; }
    void work(int, std::size_t) override { workspace_->walk.walk(); }

   private:
    static constexpr std::size_t kMostThreads = 64;
    const FusedRegion& region_;
    std::unique_ptr<Workspace> workspace_;
  };

  static const Op& op_of_step(const std::string& name) {
    for (const Op& each : steps::all()) {
      if (name == each.name) return each;
    }
    return op_named(name);
  }

  // One that was used for the same shapes, if it is still there, else a new one.
  std::unique_ptr<Workspace> workspace_of(const Inputs& inputs) const {
    if (int(inputs.size()) != program_.inputs) refuse("a program of %d inputs has %d", program_.inputs, int(inputs.size()));
    std::vector<std::int64_t> known;
    for (int at : changing_) {
      const Tensor& each = inputs[std::size_t(at)];
      known.push_back(each.type * (kMaxRank + 1) + each.shape.rank);
      known.insert(known.end(), each.shape.sizes, each.shape.sizes + each.shape.rank);
    }
    for (int each : sizes_) {
      const Tensor& sizes = inputs[std::size_t(each)];
      if (sizes.type != ort::kInt64) refuse("a Reshape to no list of sizes");
      known.insert(known.end(), sizes.data<const std::int64_t>(), sizes.data<const std::int64_t>() + sizes.shape.count());
    }
    std::unique_ptr<Workspace> workspace = spares_.taken(known);
    if (workspace == nullptr) {
      workspace.reset(new Workspace);
      workspace->plan.reset(new Plan(program_, steps_, inputs));
      workspace->known = std::move(known);
    }
    return workspace;
  }
  void keep(std::unique_ptr<Workspace> workspace) const { spares_.keep(std::move(workspace)); }

  const Program program_;
  std::vector<LoadedStep> steps_;
  std::vector<int> sizes_;     // inputs that a Reshape reads
  std::vector<int> changing_;  // inputs that are no constants
  mutable Spares spares_;
};

}  // namespace peagle
