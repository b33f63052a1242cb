#include "matching/launches.h"

#include <algorithm>
#include <utility>

#include "matching/call.h"
#include "matching/communicator.h"
#include "matching/hash.h"
#include "matching/program.h"

namespace jaxccomp {
namespace {

// More launches than XLA has in flight on a device.
constexpr size_t kUnderWay = 64;
// Number of launches to look back: enough to notice that a thread continues a launch after another thread's has begun.
constexpr size_t kLooksBack = 8;

// Executables without parameters have no fingerprint, so they share one counter, also with eager operations like
// jnp.zeros. Their RunIds begin at FarmHash's Fingerprint64 of the empty string, and gaps mean nothing.
constexpr uint32_t kWithoutFingerprint = 0x2f90404f;
constexpr uint32_t kMaxWithoutFingerprint = 1 << 24;
bool HasOwnCount(int64_t run_id) {
  return static_cast<uint32_t>(run_id) - kWithoutFingerprint >= kMaxWithoutFingerprint;
}

// RunIds are 32 bits wide, begin at a fingerprint of the executable, and wrap.
uint32_t Distance(int64_t from, int64_t to) {
  return static_cast<uint32_t>(to) - static_cast<uint32_t>(from);
}

}  // namespace

void Launch::Describe(Header* header) const {
  header->thread = thread;
  header->program_hash = program_hash;
  header->skipped = skipped;
  header->run = static_cast<uint32_t>(run_id);
  header->launched_by = launched_by;
  header->place = PlaceHash();
}

uint64_t Launch::PlaceHash() const { return place.empty() ? 0 : Mix(4, place); }

Launches::OfProgram& Launches::Of(const Communicator& comm,
                                  const std::shared_ptr<const Program>& program) {
  OfProgram& row = programs_[program->id()];
  if (row.hash != 0) return row;
  if (programs_.size() > max_programs_) {
    std::erase_if(programs_, [&](const auto& entry) {
      return entry.second.hash != 0 && entry.second.program.expired();
    });
    max_programs_ = 2 * std::max<size_t>(programs_.size(), 32);
  }
  row.program = program;
  row.hash = program->HashOf(comm);
  return row;
}

uint32_t Launches::CountSkipped(uint64_t hash, int64_t run_id) {
  if (!HasOwnCount(run_id)) return Header::kUnknownSkipped;
  if (last_run_ids_.size() >= kMaxCounted && !last_run_ids_.contains(hash)) {
    last_run_ids_.clear();
    counts_anew_ = true;
  }
  std::vector<int64_t>& counters = last_run_ids_[hash];
  for (int64_t& last : counters) {
    const uint32_t skipped = Distance(last, run_id) - 1;
    if (skipped >= kMaxSkipped) continue;
    last = run_id;
    return skipped;
  }
  const bool is_new = counters.empty() && !counts_anew_;
  if (counters.size() == kMaxCounters) counters.erase(counters.begin());
  counters.push_back(run_id);
  return is_new ? Header::kNewProgram : Header::kUnknownSkipped;
}

Launches::Entered Launches::Enter(const Communicator& comm,
                                  const std::shared_ptr<const Program>& program,
                                  const Call& call) {
  const int64_t run_id = call.run_id;
  within_process_ = !comm.remote;
  const uint64_t thread = within_process_ || program == nullptr ? 0 : program->thread();
  Sequence& sequence = sequences_[thread];
  auto& launches = sequence.launches;
  // Search from the newest, which is nearly always the running launch.
  const auto maximum = static_cast<ptrdiff_t>(within_process_ ? kUnderWay : kLooksBack);
  const auto oldest = launches.rbegin() + std::min<ptrdiff_t>(maximum, std::ssize(launches));
  const auto known = std::find_if(launches.rbegin(), oldest, [&](const auto& launch) {
    return launch->run_id == run_id && launch->program == program;
  });
  if (known != oldest) {
    const bool returned_to = !within_process_ && known != launches.rbegin();
    return {.launch = *known, .is_new = false, .overlaps = returned_to};
  }

  Entered entered;
  entered.is_new = true;
  entered.overlaps = !within_process_ && !launches.empty() && launches.back()->open_operations > 0;
  std::vector<uint64_t> iterations;
  if (launches.size() >= (within_process_ ? kUnderWay : kRemembered)) {
    iterations = std::move(launches.front()->iterations);
    launches.pop_front();
  }
  auto launch = std::make_shared<Launch>();
  launch->program = program;
  launch->run_id = run_id;
  launch->thread = thread;
  launch->place = call.place;
  launch->launched_by = call.launched_by;
  if (program != nullptr) {
    const OfProgram& of = Of(comm, program);
    launch->program_hash = of.hash;
    if (!within_process_) launch->skipped = CountSkipped(of.hash, run_id);
  }
  launch->number = within_process_ ? Mix(static_cast<uint64_t>(run_id), launch->program_hash)
                                   : sequence.next++;
  iterations.assign(program == nullptr ? 1 : program->site_count(), 0);
  launch->iterations = std::move(iterations);
  launches.push_back(launch);
  entered.launch = std::move(launch);
  return entered;
}

void Launches::Forget() {
  programs_.clear();
  last_run_ids_.clear();
  for (auto& [thread, sequence] : sequences_) sequence.launches.clear();
}

const Launches::Sequence* Launches::SequenceOf(uint64_t thread) const {
  const auto found = sequences_.find(thread);
  return found == sequences_.end() ? nullptr : &found->second;
}

bool Launches::HasBegun(const Header& header) const {
  if (within_process_) return Find(header) != nullptr;
  const Sequence* const sequence = SequenceOf(header.thread);
  return sequence != nullptr && header.sequence < sequence->next;
}

const Launch* Launches::Find(const Header& header) const {
  const Sequence* const sequence = SequenceOf(header.thread);
  if (sequence == nullptr || sequence->launches.empty()) return nullptr;
  const auto& launches = sequence->launches;
  if (within_process_) {
    const auto found = std::find_if(launches.rbegin(), launches.rend(), [&](const auto& launch) {
      return launch->number == header.sequence;
    });
    return found == launches.rend() ? nullptr : found->get();
  }
  const uint64_t first = launches.front()->number;
  const bool remembered = header.sequence >= first && header.sequence < sequence->next;
  return remembered ? launches[header.sequence - first].get() : nullptr;
}

std::optional<Launches::Difference> Launches::FindDifference(const Header& header) const {
  if (header.program_hash == 0 || within_process_) return std::nullopt;
  const Launch* const here = Find(header);
  if (here == nullptr) return std::nullopt;
  if (here->program_hash != header.program_hash) return Difference::kProgram;
  if (header.type == MessageType::kCheck) return std::nullopt;
  if (header.launched_by != 0 && here->launched_by != 0 &&
      header.launched_by != here->launched_by) {
    return Difference::kThread;
  }
  const uint64_t place = here->PlaceHash();
  if (header.place != 0 && place != 0 && header.place != place) {
    return Difference::kPlace;
  }
  if (here->skipped < kMaxSkipped && header.skipped < kMaxSkipped) {
    return here->skipped == header.skipped ? std::nullopt : std::optional(Difference::kSkipped);
  }
  // This is the program's first launch here on both ranks. Equal executables start at the same RunId.
  if (here->skipped != Header::kNewProgram || header.skipped != here->skipped) return std::nullopt;
  const uint32_t apart = std::min(header.run - static_cast<uint32_t>(here->run_id),
                                  static_cast<uint32_t>(here->run_id) - header.run);
  return apart == 0 || apart >= kMaxSkipped ? std::nullopt : std::optional(Difference::kSkipped);
}

bool Launches::HasPosted(const Header& header) const {
  const Launch* const launch = Find(header);
  if (launch == nullptr) return !within_process_ && HasBegun(header);
  if (launch->program == nullptr) return launch->iterations[0] > header.iteration;
  const std::optional<size_t> index = launch->program->IndexOf(header.site);
  return index.has_value() && launch->iterations[*index] > header.iteration;
}

bool Launches::HasLeft(const Header& header) const {
  if (within_process_) return false;
  const Launch* const launch = Find(header);
  if (launch == nullptr || launch == SequenceOf(header.thread)->launches.back().get()) return false;
  const std::optional<size_t> index = launch->program->IndexOf(header.site);
  return index.has_value() && launch->iterations[*index] <= header.iteration;
}

}  // namespace jaxccomp
