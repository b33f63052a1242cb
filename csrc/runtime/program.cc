#include "runtime/program.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/hash.h"

namespace jaxccomp {
namespace {

struct OpenPrograms {
  std::mutex mutex;
  // XLA instantiates the sites of one program on one thread.
  std::unordered_map<std::thread::id, std::shared_ptr<Program>> by_thread;
  uint64_t next_id = 1;
};

OpenPrograms& Open() {
  static auto* open = new OpenPrograms;  // outlives every thread
  return *open;
}

}  // namespace

uint64_t Program::Add(uint64_t signature, uint64_t group, std::string text) {
  const auto ordinal = static_cast<uint64_t>(
      std::count_if(members_.begin(), members_.end(), [&](const Member& m) {
        return m.signature == signature && m.group == group;
      }));
  members_.push_back({signature, group, ordinal, std::move(text)});
  return ordinal;
}

uint64_t Program::HashOf(uint64_t group) const {
  uint64_t sum = 1;
  for (const Member& m : members_) {
    if (m.group == group) sum += Mix(m.signature, m.ordinal);
  }
  return sum == 0 ? 1 : sum;
}

std::string Program::ListOf(uint64_t group) const {
  std::string text;
  for (const Member& m : members_) {
    if (m.group == group) text += m.text + "\n";
  }
  return text;
}

Result<std::unique_ptr<Site>> MakeSite(OpSpec spec) {
  auto site = std::make_unique<Site>();
  if (spec.codec != "raw") {
    Result<const Codec*> codec = LookupCodec(spec.codec);
    if (!codec.ok()) return codec.status();
    site->codec = codec.value();
  }
  site->signature = spec.Signature();
  site->group = Mix(Mix(0, spec.communicator), static_cast<uint64_t>(spec.group_size));
  for (int64_t device : spec.groups) site->group = Mix(site->group, static_cast<uint64_t>(device));

  site->text = std::make_shared<const std::string>(spec.ToString());
  // Operations in program order are numbered when they run; their programs may differ.
  if (!spec.ordered) {
    OpenPrograms& open = Open();
    std::lock_guard<std::mutex> lock(open.mutex);
    auto& program = open.by_thread[std::this_thread::get_id()];
    if (program == nullptr) program = std::make_shared<Program>(open.next_id++);
    const uint64_t identity = Mix(site->signature, static_cast<uint64_t>(spec.site));
    const uint64_t ordinal = program->Add(identity, site->group, *site->text);
    site->id = Mix(identity, ordinal);
    site->program = program;
  }
  site->spec = std::move(spec);
  return site;
}

void ClosePrograms() {
  OpenPrograms& open = Open();
  std::lock_guard<std::mutex> lock(open.mutex);
  open.by_thread.clear();
}

void CloseProgram(const Program& program) {
  OpenPrograms& open = Open();
  std::lock_guard<std::mutex> lock(open.mutex);
  std::erase_if(open.by_thread, [&](const auto& entry) { return entry.second.get() == &program; });
}

}  // namespace jaxccomp
