#include "matching/program.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "codec/registry.h"
#include "matching/communicator.h"
#include "matching/hash.h"

namespace jaxccomp {
namespace {

struct OpenPrograms {
  std::mutex mutex;
  std::unordered_map<std::thread::id, std::shared_ptr<Program>> by_thread;   // of XLA's pool
  uint64_t next_id = 1;
};

OpenPrograms& Open() {
  static auto* open = new OpenPrograms;  // outlives every thread
  return *open;
}

uint64_t ThreadOf(const std::string& name) { return name.empty() ? 0 : Mix(3, name); }

std::string LettersOf(std::string_view name) {
  std::string kept;
  for (char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) kept += c;
  }
  return kept;
}

}  // namespace

Program::Program(uint64_t id, const OpSpec& spec)
    : id_(id), thread_(ThreadOf(spec.thread)), name_(spec.program) {}

uint64_t Program::Add(const OpSpec& spec, uint64_t signature,
                      std::shared_ptr<const std::string> text) {
  const Group group{spec.communicator, spec.groups, spec.group_size};
  const auto known = std::find(groups_.begin(), groups_.end(), group);
  const auto index = static_cast<size_t>(known - groups_.begin());
  if (known == groups_.end()) groups_.push_back(group);
  const uint64_t identity = Mix(signature, static_cast<uint64_t>(spec.site));
  const auto ordinal = static_cast<uint64_t>(
      std::count_if(members_.begin(), members_.end(), [&](const Member& m) {
        return m.identity == identity && m.group == index;
      }));
  uint64_t id = Mix(Mix(identity, ordinal), group.communicator);
  for (int64_t device : group.devices) id = Mix(id, static_cast<uint64_t>(device));
  members_.push_back({identity, index, id, std::move(text)});
  return id;
}

bool Program::Holds(const OpSpec& spec) const {
  return name_ == spec.program && thread_ == ThreadOf(spec.thread);
}

std::optional<size_t> Program::IndexOf(uint64_t site) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& m) { return m.id == site; });
  if (found == members_.end()) return std::nullopt;
  return static_cast<size_t>(found - members_.begin());
}

bool Program::TakesPart(const Communicator& comm, const Group& group) {
  if (!group.communicator.empty()) return comm.name == group.communicator;
  const auto size = static_cast<size_t>(group.size);
  if (size == 0 || comm.devices.size() != size) return false;
  for (size_t first = 0; first + size <= group.devices.size(); first += size) {
    if (std::equal(comm.devices.begin(), comm.devices.end(), group.devices.begin() + first)) {
      return true;
    }
  }
  return false;
}

template <typename Visit>
void Program::ForEachIn(const Communicator& comm, Visit visit) const {
  std::vector<bool> takes_part;
  for (const Group& group : groups_) takes_part.push_back(TakesPart(comm, group));
  for (const Member& m : members_) {
    if (takes_part[m.group]) visit(m);
  }
}

uint64_t Program::HashOf(const Communicator& comm) const {
  uint64_t sum = Mix(Mix(1, name_), thread_);
  ForEachIn(comm, [&](const Member& m) { sum += m.id; });
  return sum == 0 ? 1 : sum;
}

std::string Program::ListOf(const Communicator& comm) const {
  std::string text = name_.empty() ? "" : "program " + name_ + ":\n";
  ForEachIn(comm, [&](const Member& m) { text += *m.text + "\n"; });
  return text;
}

void CopyText(const std::string& text, std::span<char> field) {
  // A long text is cut in the middle: the kind and the source line matter most.
  std::string fitting = text;
  if (text.size() >= field.size()) {
    fitting.replace(field.size() / 2 - 4, text.size() - (field.size() - 4), "...");
  }
  field[fitting.copy(field.data(), field.size() - 1)] = '\0';
}

namespace {

Header HeaderOf(const OpSpec& spec, const std::string& text) {
  Header h;
  h.collective = static_cast<uint8_t>(spec.collective);
  h.reduce_op = static_cast<uint8_t>(spec.reduce_op);
  h.signature = spec.Signature();
  h.root = static_cast<int32_t>(spec.root);
  CopyText(spec.program.empty() ? text : text + " in " + spec.program, h.text);
  return h;
}

}  // namespace

Result<std::unique_ptr<CallSite>> MakeCallSite(OpSpec spec) {
  auto site = std::make_unique<CallSite>();
  if (spec.codec != "raw") {
    auto codec = LookupCodec(spec.codec);
    if (!codec.ok()) return codec.status();
    site->codec = *codec;
  }
  site->text = std::make_shared<const std::string>(spec.ToString());
  site->header = HeaderOf(spec, *site->text);
  // Operations in program order are numbered when they run; their programs may differ.
  if (!spec.ordered) {
    OpenPrograms& open = Open();
    std::lock_guard<std::mutex> lock(open.mutex);
    auto& program = open.by_thread[std::this_thread::get_id()];
    if (program == nullptr || !program->Holds(spec)) {
      program = std::make_shared<Program>(open.next_id++, spec);
    }
    site->index = program->site_count();
    site->id = program->Add(spec, site->header.signature, site->text);
    site->program = program;
  }
  site->spec = std::move(spec);
  return site;
}

namespace {

void ClosePrograms(std::string_view name, std::optional<uint64_t> thread) {
  const std::string wanted = LettersOf(name);
  OpenPrograms& open = Open();
  std::lock_guard<std::mutex> lock(open.mutex);
  std::erase_if(open.by_thread, [&](const auto& entry) {
    const Program& program = *entry.second;
    return (!thread || program.thread() == *thread) &&
           (wanted.empty() || LettersOf(program.name()) == wanted);
  });
}

}  // namespace

void CloseProgram(std::string_view name) { ClosePrograms(name, std::nullopt); }

void CloseProgram(std::string_view name, const std::string& thread) {
  ClosePrograms(name, ThreadOf(thread));
}

void CloseProgram(Program& program) {
  if (!program.Close()) return;
  OpenPrograms& open = Open();
  std::lock_guard<std::mutex> lock(open.mutex);
  std::erase_if(open.by_thread, [&](const auto& entry) { return entry.second.get() == &program; });
}

}  // namespace jaxccomp
