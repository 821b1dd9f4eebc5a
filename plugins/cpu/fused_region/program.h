// The program of a FusedRegion: steps over numbered values, one a line, as written by graphs/lowering/cpu/.
//
// Values 0 .. inputs - 1 are the node's inputs.
//
//   OP INPUTS > OUTPUTS NAME=ATTRIBUTE ...     a step; "-" is an absent operand; a float is "#" and its bits in hex
//   outputs VALUES

#include "steps.h"

namespace peagle {

inline std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(by, at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

inline std::vector<int> values_of(const std::string& text) {
  std::vector<int> values;
  for (const std::string& each : split(text, ',')) values.push_back(each == "-" ? -1 : std::atoi(each.c_str()));
  return values;
}

struct StepText {
  std::string op;
  std::vector<int> inputs, outputs;
  std::vector<std::pair<std::string, std::string>> attributes;

  const std::string* find(const char* name) const {
    for (const auto& each : attributes) {
      if (each.first == name) return &each.second;
    }
    return nullptr;
  }
};

struct Program {
  int inputs, values;
  std::vector<StepText> steps;
  std::vector<int> outputs;

  // Throws if a step reads a value that no earlier step defines.
  Program(const std::string& text, int inputs_of_node) : inputs(inputs_of_node), values(inputs_of_node) {
    for (const std::string& line : split(text, '\n')) {
      const std::vector<std::string> words = split(line, ' ');
      if (words.size() < 2) refuse("invalid program line '%s'", line.c_str());
      if (words[0] == "outputs") {
        outputs = values_of(words[1]);
      } else {
        steps.push_back(step(words, line));
      }
    }
    for (int each : outputs) {
      check_defined(each);
      if (each < inputs) refuse("an input of the program must not be its output");
    }
    if (outputs.empty() || inputs < 1) refuse("the program has no inputs or no outputs");
  }

 private:
  StepText step(const std::vector<std::string>& words, const std::string& line) {
    if (words.size() < 4 || words[2] != ">") refuse("invalid step '%s'", line.c_str());
    StepText result{words[0], values_of(words[1]), values_of(words[3]), {}};
    for (int each : result.inputs) check_defined(each);
    for (int each : result.outputs) {
      if (each >= 0 && each != values++) refuse("step '%s' does not number its outputs in order", line.c_str());
    }
    for (std::size_t i = 4; i < words.size(); i++) {
      const std::size_t at = words[i].find('=');
      if (at == std::string::npos) refuse("invalid attribute '%s'", words[i].c_str());
      result.attributes.emplace_back(words[i].substr(0, at), words[i].substr(at + 1));
    }
    return result;
  }
  void check_defined(int value) const {
    if (value < -1 || value >= values) refuse("the program reads value %d before it is defined", value);
  }
};

// Presents a step as a node, so that its kernel can be made.
class StepNode : public Node {
 public:
  StepNode(const StepText& step, const Node& whole, int inputs) : step_(step), whole_(whole), inputs_(inputs) {}
  std::string text(const char* name, const char* fallback) const override {
    const std::string* value = step_.find(name);
    return value != nullptr ? *value : fallback;
  }
  std::int64_t integer(const char* name, std::int64_t fallback) const override {
    const std::string* value = step_.find(name);
    return value != nullptr ? std::strtoll(value->c_str(), nullptr, 10) : fallback;
  }
  float number(const char* name, float fallback) const override {
    const std::string* value = step_.find(name);
    if (value == nullptr) return fallback;
    if (value->empty() || (*value)[0] != '#') refuse("attribute %s is '%s'", name, value->c_str());
    return number_of(std::uint32_t(std::strtoul(value->c_str() + 1, nullptr, 16)));
  }
  Tensor constant_or_none(std::size_t at) const override {
    if (at >= step_.inputs.size() || step_.inputs[at] < 0 || step_.inputs[at] >= inputs_) return Tensor();
    return whole_.constant_or_none(std::size_t(step_.inputs[at]));
  }

 private:
  const StepText& step_;
  const Node& whole_;
  const int inputs_;
};

}  // namespace peagle
