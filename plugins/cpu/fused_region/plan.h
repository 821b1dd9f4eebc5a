// Where the values of a program lie in memory, for inputs of some shapes.
//
// Steps are done one after the other, but for those that need nothing but their own token: they go on with a token that
// the step before them is done with.  A group is a run of such steps and the next step that is not one; behind it
// everybody waits for everybody.  So memory is used again from one group to the next, and not within one.

#include "views.h"

namespace peagle {

// What is known of a program before it is run.
struct LoadedStep {
  StepText text;
  const Op* op;                    // null: a view
  std::unique_ptr<Kernel> kernel;  // null: a view
  int end;                         // the last step of its group
};

class Plan {
 public:
  struct Buffer {
    std::size_t bytes, offset;
    int first, last;  // groups that use it, by their last step
  };
  struct Copy {  // a view that must be dense, before some step
    int before, from, to;
  };
  struct Alias {  // an output that holds at first what an input does
    int input, output;
  };

  Plan(const Program& program, const std::vector<LoadedStep>& steps, const Inputs& inputs)
      : count_of_inputs_(program.inputs), values_(std::size_t(program.values)) {
    buffers.resize(inputs.size() + program.outputs.size());  // not ours
    for (int i = 0; i < program.inputs; i++) values_[std::size_t(i)] = Value{inputs[std::size_t(i)], i, 0};
    for (int i = 0; i < int(steps.size()); i++) add(program, steps[std::size_t(i)], i);
    for (std::size_t i = 0; i < program.outputs.size(); i++) {
      const int value = program.outputs[i], buffer = output_buffer(i);
      if (values_[std::size_t(value)].buffer == buffer) continue;  // made in place
      copies.push_back({int(steps.size()), value, new_value(values_[std::size_t(value)].tensor, buffer)});
      touch(value, int(steps.size()));
    }
    place();
  }

  const Value& value(int at) const { return values_[std::size_t(at)]; }
  const std::vector<int>& inputs_of(int step) const { return inputs_[std::size_t(step)]; }
  const std::vector<int>& outputs_of(int step) const { return outputs_[std::size_t(step)]; }
  int output_buffer(std::size_t output) const { return count_of_inputs_ + int(output); }

  std::vector<Buffer> buffers;
  std::vector<Copy> copies;
  std::vector<Alias> aliases;
  std::size_t bytes = 0;  // of all that is ours

 private:
  void add(const Program& program, const LoadedStep& step, int at) {
    std::vector<int> given = step.text.inputs, made(step.text.outputs);
    if (step.op == nullptr) {
      if (given.empty() || given[0] < 0) refuse("a step %s has no input", step.text.op.c_str());
      std::vector<Value> results;
      if (!viewed(step.text, values_[std::size_t(given[0])], values_, &results)) {
        given[0] = dense(given[0], at, step.end);
        if (!viewed(step.text, values_[std::size_t(given[0])], values_, &results)) refuse("a view cannot be made");
      }
      if (made.size() != results.size()) refuse("a step %s has other outputs", step.text.op.c_str());
      for (std::size_t i = 0; i < made.size(); i++) {
        if (made[i] >= 0) values_[std::size_t(made[i])] = results[i];
      }
    } else {
      Inputs tensors(step.op->inputs.size());
      if (given.size() > tensors.size() || made.size() > step.op->outputs.size()) {
        refuse("a step %s has too many inputs or outputs", step.op->name);
      }
      for (std::size_t i = 0; i < given.size(); i++) {
        if (given[i] < 0) continue;
        const bool may_be_view = step.kernel->takes_views();
        if (!may_be_view && !is_dense(values_[std::size_t(given[i])].tensor)) given[i] = dense(given[i], at, step.end);
        tensors[i] = values_[std::size_t(given[i])].tensor;
        touch(given[i], step.end);
      }
      for (std::size_t i = 0; i < tensors.size(); i++) {
        const Operand& operand = step.op->inputs[i];
        if (!tensors[i].is_there() && !operand.is_optional) refuse("an input that a step %s needs is absent", step.op->name);
      }
      if (!fits(*step.op, tensors) && !has_form(step.op->name, tensors)) refuse_types(*step.op, tensors);
      make_outputs(program, step, at, given, tensors, &made);
    }
    inputs_.push_back(given);
    outputs_.push_back(made);
  }

  void make_outputs(const Program& program, const LoadedStep& step, int at, const std::vector<int>& given,
                    const Inputs& tensors, std::vector<int>* made) {
    const Op& op = *step.op;
    std::vector<Shape> shapes(op.outputs.size());
    made->resize(op.outputs.size(), -1);
    for (std::size_t i = 0; i < shapes.size(); i++) {
      if (op.outputs[i].alias >= 0) shapes[i] = tensors[std::size_t(op.outputs[i].alias)].shape;
    }
    step.kernel->shapes(tensors, shapes.data());
    for (std::size_t i = 0; i < shapes.size(); i++) {
      const Operand& operand = op.outputs[i];
      int& value = (*made)[i];
      if (value < 0 && operand.is_optional) continue;
      const int type = operand.same_as >= 0 ? tensors[std::size_t(operand.same_as)].type : operand.type;
      const Tensor tensor(shapes[i], type, nullptr);
      if (ort::size_of(type) == 0) refuse("a step %s makes numbers of an unknown type", op.name);
      const auto wanted = std::find(program.outputs.begin(), program.outputs.end(), value);
      int buffer = -1;
      if (value >= 0 && wanted != program.outputs.end()) {
        buffer = output_buffer(std::size_t(wanted - program.outputs.begin()));
        if (operand.alias >= 0) aliases.push_back({given[std::size_t(operand.alias)], buffer});
      } else if (operand.alias >= 0) {
        buffer = values_[std::size_t(given[std::size_t(operand.alias)])].buffer;
      } else {
        buffer = new_buffer(tensor, at);
      }
      if (value < 0) {
        value = new_value(tensor, buffer);
      } else {
        values_[std::size_t(value)] = Value{tensor, buffer, 0};
      }
      touch(value, step.end);
    }
  }

  [[noreturn]] static void refuse_types(const Op& op, const Inputs& tensors) {
    std::size_t i = 0;
    while (op.inputs[i].type == ort::kAnyType || tensors[i].type == op.inputs[i].type || !tensors[i].is_there()) i++;
    refuse("input %d of a step %s is of type %d", int(i), op.name, tensors[i].type);
  }

  int new_buffer(const Tensor& tensor, int first) {
    buffers.push_back({tensor.bytes(), 0, first, first});
    return int(buffers.size()) - 1;
  }
  int new_value(const Tensor& tensor, int buffer) {
    values_.push_back(Value{Tensor(tensor.shape, tensor.type, nullptr), buffer, 0});
    return int(values_.size()) - 1;
  }
  int dense(int value, int before, int end) {
    const Tensor tensor = values_[std::size_t(value)].tensor;
    if (tensor.type != ort::kFloat32) refuse("a view of numbers of type %d cannot be made dense", tensor.type);
    const int to = new_value(tensor, new_buffer(tensor, before));
    copies.push_back({before, value, to});
    touch(value, end);
    touch(to, end);
    return to;
  }
  void touch(int value, int last) {
    Buffer& buffer = buffers[std::size_t(values_[std::size_t(value)].buffer)];
    buffer.last = std::max(buffer.last, last);
  }

  // The first place that is free for as long as a buffer is used.
  void place() {
    std::vector<const Buffer*> placed;  // in the order of their offsets
    for (std::size_t i = std::size_t(output_buffer(0)) ; i < buffers.size(); i++) {
      Buffer& buffer = buffers[i];
      if (buffer.bytes == 0) continue;
      constexpr std::size_t kLine = 64;
      const std::size_t size = (buffer.bytes + kLine - 1) / kLine * kLine;
      std::size_t at = 0;
      for (const Buffer* other : placed) {
        if (other->last < buffer.first || other->first > buffer.last) continue;
        if (other->offset >= at + size) break;
        at = std::max(at, other->offset + (other->bytes + kLine - 1) / kLine * kLine);
      }
      buffer.offset = at;
      bytes = std::max(bytes, at + size);
      const auto less = [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; };
      placed.insert(std::upper_bound(placed.begin(), placed.end(), &buffer, less), &buffer);
    }
  }

  const int count_of_inputs_;
  std::vector<Value> values_;
  std::vector<std::vector<int>> inputs_, outputs_;
};

}  // namespace peagle
