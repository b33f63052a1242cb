// What comes from other ranks, and what is told to them.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "runtime/engine_impl.h"

namespace jaxccomp {
namespace {

constexpr uint64_t kNoSequence = ~uint64_t{0};           // of what nobody comes to
constexpr size_t kLongestAbortText = kAlongBytes - 256;  // and who reports it

std::string_view TextOf(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

std::string AbortText(const Communicator& comm) {
  std::string text = comm.broken.message().substr(0, kLongestAbortText);
  if (!comm.endpoints.empty()) {
    text += "\n  (reported by " + comm.MemberName(comm.endpoints.front()->member) + ")";
  }
  return text;
}

// A message that nobody waits for: lives until it is sent.
struct Notice final : Completion {
  std::string text;
  void Done(Status) override { delete this; }
};

}  // namespace

bool Engine::Impl::Notify(int process, const Header& header, std::string payload) {
  Transport* const transport = wire_.To(process);
  if (transport == nullptr) return false;
  auto* notice = new Notice;
  notice->text = std::move(payload);
  Header h = header;
  h.payload_bytes = static_cast<int64_t>(notice->text.size());
  const Piece piece{notice->text.data(), h.payload_bytes};
  transport->Send(process, h, {&piece, h.payload_bytes > 0 ? size_t{1} : size_t{0}}, notice);
  return true;
}

void Engine::Impl::OnMessage(const Header& header, std::span<const std::byte> payload,
                             Announced announced) {
  if (header.type == MessageType::kAbort) {
    Discard(announced);
    return OnAbort(header, payload);
  }
  if (header.type == MessageType::kGone) {
    Discard(announced);
    return OnGone(header, payload);
  }
  // Whatever has become of the operation.
  if (header.type == MessageType::kReturn) return executor_.LoanReturned(header);
  if (header.type == MessageType::kLoan) return OnLoan(header, payload, announced);
  Communicator* const comm = registry_.Find(header.communicator);
  Endpoint* const endpoint = comm == nullptr ? nullptr : comm->Find(header.destination);
  if (comm != nullptr ? !comm->broken.ok() : registry_.IsBrokenUnborn(header.communicator)) {
    Discard(announced);
    const bool asks = header.type == MessageType::kProbe || header.type == MessageType::kCheck;
    if (asks && endpoint != nullptr && !HasCome(*endpoint, header, payload)) {
      TellWhyBroken(*comm, header);
    }
    return;
  }
  if (header.type == MessageType::kBlocked) return OnBlocked(header, payload);
  if (header.site == PointToPointMatching::kMessageSite) {
    return OnPointToPoint(header, payload, announced);
  }
  if (header.type == MessageType::kProbe && header.site == PointToPointMatching::kOperationSite) {
    if (endpoint != nullptr) OnProbeOfMessages(*endpoint, header, payload);
    return;
  }
  if (comm != nullptr && !comm->remote && failed_runs_.Has(header.run)) return Discard(announced);
  if (header.type == MessageType::kPresent) return OnPresent(header);
  if (header.type == MessageType::kBehind) return OnBehind(header);
  Operation* const op = operations_.Find(MatchKey::Of(header));
  const bool here = op != nullptr && !op->over;
  const bool same_launch = op != nullptr && op->header.program_hash == header.program_hash &&
                           op->header.skipped == header.skipped && op->header.run == header.run &&
                           op->header.place == header.place &&
                           op->header.launched_by == header.launched_by;
  if (!same_launch && endpoint != nullptr && options_.check_programs &&
      endpoint->launches.FindDifference(header)) {
    Discard(announced);
    return RefuseOtherLaunch(*endpoint, *endpoint->launches.Find(header), header, payload);
  }
  if (here && header.signature != op->header.signature) {
    Discard(announced);
    return executor_.Fail(op, MismatchError(*op->endpoint, *op->text, header));
  }
  if (here && IsOfAnotherStep(*op, header)) {
    Discard(announced);
    return executor_.Fail(op, StepError(*op, header));
  }
  if (header.type == MessageType::kProbe) {
    if (endpoint == nullptr) return;
    if (endpoint->launches.HasLeft(header)) return Break(*comm, LeftError(*endpoint, header), true);
    return OnProbe(*endpoint, header, here);
  }
  if (here && !op->held) return executor_.Arrived(op, header, payload, announced);
  if (!here && endpoint != nullptr && ComesTooLate(*endpoint, header)) {
    Discard(announced);
    const std::string* mine = endpoint->recent.Find(MatchKey::Of(header));
    return Break(*comm,
                 MismatchError(*endpoint, mine != nullptr ? *mine : "what is over long since",
                               header),
                 true);
  }
  matcher_.early().Keep(Arrival(&wire_, header, payload, announced));
  if (header.type != MessageType::kCheck || endpoint == nullptr) return;
  const auto compared = endpoint->comparisons.find(header.program_hash);
  if (compared != endpoint->comparisons.end()) Compare(*endpoint, *compared->second);
}

void Engine::Impl::OnLoan(const Header& header, std::span<const std::byte> payload,
                          Announced announced) {
  const bool known = header.source_process >= 0 && header.source_process < processes_;
  const Result<Announced> loan =
      known ? executor_.AcceptLoan(header, payload)
            : Result<Announced>(Status(Code::kDataLoss, "a ticket arrived from nowhere"));
  if (loan.ok()) {
    const Header as_data = executor_.HeaderOf(*loan);
    return OnMessage(as_data, {}, *loan);
  }
  Discard(announced);
  OnLoanFailed(header, loan.status());
}

void Engine::Impl::OnLoanFailed(const Header& header, const Status& why) {
  Communicator* const comm = registry_.Find(header.communicator);
  if (comm == nullptr) return;
  Break(*comm, {why.code(), Describe(header) + ": " + why.message()}, true);
}

// Answers one who waits for an operation that will not come.
void Engine::Impl::TellWhyBroken(const Communicator& comm, const Header& asked) {
  if (asked.source < 0 || asked.source >= comm.size()) return;
  const int process = comm.processes[asked.source];
  if (process != wire_.process()) Notify(process, AbortHeader(comm), AbortText(comm));
}

void Engine::Impl::AskWhetherBroken(const Communicator& comm) {
  // A probe of what nobody comes to: only who cannot come any more has an answer.
  Header header;
  header.type = MessageType::kProbe;
  header.communicator = comm.id;
  header.sequence = kNoSequence;
  header.source_process = wire_.process();
  if (comm.endpoints.empty()) return;
  header.source = comm.endpoints.front()->member;
  for (int member = 0; member < comm.size(); ++member) {
    if (comm.processes[member] == wire_.process()) continue;
    header.destination = member;
    Notify(comm.processes[member], header);
  }
}

Header Engine::Impl::AbortHeader(const Communicator& comm) const {
  Header header;
  header.type = MessageType::kAbort;
  header.communicator = comm.id;
  header.destination = -1;
  header.source = -1;
  header.source_process = wire_.process();
  return header;
}

void Engine::Impl::RefuseOtherLaunch(Endpoint& endpoint, const Launch& launch,
                                     const Header& header, std::span<const std::byte> payload) {
  switch (endpoint.launches.FindDifference(header).value_or(Launches::Difference::kProgram)) {
    case Launches::Difference::kProgram: break;
    case Launches::Difference::kThread:
      return Break(*endpoint.communicator, ThreadError(endpoint, launch, header), true);
    case Launches::Difference::kPlace:
      return Break(*endpoint.communicator, PlaceError(endpoint, launch, header), true);
    case Launches::Difference::kSkipped:
      return Break(*endpoint.communicator, SkippedError(endpoint, launch, header), true);
  }
  const std::string mine = launch.program->ListOf(*endpoint.communicator);
  const bool listed = header.type == MessageType::kCheck && !payload.empty();
  Break(*endpoint.communicator,
        listed ? ProgramMismatch(endpoint, ListThatTravels(mine), header, TextOf(payload))
               : MismatchError(endpoint, "a program of" + HeadOf(mine), header),
        true);
}

void Engine::Impl::OnAbort(const Header& header, std::span<const std::byte> payload) {
  const Status why(Code::kAborted, std::string(TextOf(payload)));
  if (Communicator* const comm = registry_.Find(header.communicator)) {
    return Break(*comm, why, false);
  }
  registry_.BreakUnborn(header.communicator, why);
  DropMessages(header.communicator);
}

void Engine::Impl::OnProbe(const Endpoint& endpoint, const Header& header, bool here) {
  const Communicator& comm = *endpoint.communicator;
  if (header.source < 0 || header.source >= comm.size()) return;
  if (header.sequence == kNoSequence) return;
  // Who compares programs asks for the launch, not for an operation of it.
  const bool came = here || (header.tag != 0 || !IsOfLaunch(header)
                                 ? HasComeTo(endpoint, header)
                                 : endpoint.launches.HasPosted(header));
  Header answer = header;
  answer.type = came ? MessageType::kPresent : MessageType::kBehind;
  answer.total_bytes = static_cast<int64_t>(endpoint.recent.count());
  std::swap(answer.source, answer.destination);
  Notify(comm.processes[header.source], answer);
}

Operation* Engine::Impl::FindAsker(const Header& answer) const {
  Operation* const op = operations_.Find(MatchKey::Of(answer));
  if (op == nullptr) return nullptr;
  const bool known = answer.source >= 0 && answer.source < op->endpoint->communicator->size();
  return known && !op->over && !op->failed ? op : nullptr;
}

void Engine::Impl::OnPresent(const Header& header) {
  Operation* const op = FindAsker(header);
  if (op == nullptr) return;
  op->present.resize(static_cast<size_t>(op->endpoint->communicator->size()));
  op->present[header.source] = 1;
  // That it has come since is progress.
  if (!op->heard.empty() && std::exchange(op->heard[header.source], 0) != 0) {
    op->last_progress = Clock::now();
  }
}

void Engine::Impl::OnBehind(const Header& header) {
  Operation* const op = FindAsker(header);
  if (op == nullptr) return;
  op->heard.resize(static_cast<size_t>(op->endpoint->communicator->size()));
  const uint64_t now = 1 + static_cast<uint64_t>(header.total_bytes);
  const uint64_t before = std::exchange(op->heard[header.source], now);
  if (before == 0 || before == now) return;
  // The two ends of a message wait for each other alone. In a collective, whoever has not come may be
  // the one that all others wait for, one after the other.
  if (op->ends.used) {
    const std::vector<int> awaited = WaitsFor(*op);
    if (std::find(awaited.begin(), awaited.end(), header.source) == awaited.end()) return;
  }
  op->last_progress = Clock::now();
}

// ---- Who is gone -------------------------------------------------------------------------

void Engine::Impl::OnPeerLost(int process, const Status& why) {
  if (process >= 0) return Lose(process, why, true, true);
  // A message was broken so badly that its sender is unknown.
  std::set<Communicator*> affected;
  operations_.Each([&](const Operation& op) { affected.insert(op.endpoint->communicator); });
  for (Communicator* comm : registry_.All()) {
    if (comm->outside) affected.insert(comm);
  }
  for (Communicator* comm : affected) Break(*comm, why, true);
}

void Engine::Impl::OnGone(const Header& header, std::span<const std::byte> payload) {
  const int process = header.root;
  if (process < 0 || process >= processes_) return;
  const bool itself = process == header.source_process;
  Lose(process, {Code::kAborted, std::string(TextOf(payload))}, !itself, false);
}

// That process takes part in nothing any more. `dead`: nor does it answer. Who knows it `first_hand`
// tells all others, once: they wait for it, or will.
void Engine::Impl::Lose(int process, const Status& why, bool dead, bool first_hand) {
  if (process == wire_.process()) return;
  if (dead) {
    executor_.loans().Lose(process);
    executor_.direct().Lose(process);
  }
  if (!peers_.Lose(process, why, dead)) return;
  if (first_hand) TellGone(process, why.message());
  for (Communicator* comm : registry_.All()) BreakIfLost(*comm);
}

void Engine::Impl::TellGone(int process, const std::string& why) {
  Header header;
  header.type = MessageType::kGone;
  header.root = process;
  header.source = header.destination = -1;
  header.source_process = wire_.process();
  for (int other = 0; other < processes_; ++other) {
    const Peers::Gone* const gone = peers_.Find(other);
    if (other == wire_.process() || other == process || (gone != nullptr && gone->dead)) continue;
    Notify(other, header, why.substr(0, kLongestAbortText));
  }
}

void Engine::Impl::Announce(const std::string& how) {
  if (stopped_ || announced_ || processes_ == 1) return;
  announced_ = true;
  TellGone(wire_.process(), "rank " + std::to_string(wire_.process()) + " of the world " + how);
  if (wire_.HasRemote()) EnsureProgress();
}

void Engine::Impl::BreakIfLost(Communicator& comm) {
  if (peers_.gone().empty() || !comm.broken.ok()) return;
  for (int process : comm.processes) {
    const Peers::Gone* const gone = peers_.Find(process);
    if (gone == nullptr) continue;
    comm.lost = true;
    const std::string advice = ". The others can go on: comm.survivors()";
    return Break(comm, {gone->why.code(), gone->why.message() + advice}, false);
  }
}

void Engine::Impl::LookForDead() {
  // Its last words may have come.
  if (inline_drivers_ == 0 && !stopped_) wire_.Poll();
  if (stopped_) return;
  for (int process : peers_.FindDead()) {
    Lose(process,
         {Code::kUnavailable, "rank " + std::to_string(process) +
                                  " of the world has died: its process was killed, or ended "
                                  "without a word"},
         true, true);
  }
}

// ---- The comparison of programs ----------------------------------------------------------

Comparison* Engine::Impl::PendingComparison(Endpoint& endpoint, Launch& launch) {
  const bool alone = endpoint.communicator->size() == 1;
  if (!options_.check_programs || alone || launch.program == nullptr) return nullptr;
  if (launch.comparison == nullptr) {
    if (endpoint.compared.contains(launch.program_hash)) return nullptr;
    auto& known = endpoint.comparisons[launch.program_hash];
    if (known == nullptr) {
      known = std::make_shared<Comparison>();
      known->program_hash = launch.program_hash;
      known->thread = launch.thread;
      known->launch = endpoint.communicator->remote ? launch.number : launch.program_hash;
      known->list = ListThatTravels(launch.program->ListOf(*endpoint.communicator));
    }
    launch.comparison = known;
  }
  return launch.comparison->passed ? nullptr : launch.comparison.get();
}

void Engine::Impl::Compare(Endpoint& endpoint, Comparison& comparison) {
  const Communicator& comm = *endpoint.communicator;
  const int members = comm.size();
  while (!comparison.passed) {
    if (!comparison.told) {
      Header header;
      header.type = MessageType::kCheck;
      header.communicator = comm.id;
      header.thread = comparison.thread;
      header.sequence = comparison.launch;
      header.site = Comparison::kSite;
      header.iteration = static_cast<uint64_t>(comparison.round);
      header.program_hash = comparison.program_hash;
      header.source = endpoint.member;
      header.source_process = wire_.process();
      header.destination = comparison.To(endpoint.member, members);
      std::strncpy(header.text, "another program", sizeof(header.text) - 1);
      comparison.told = true;
      if (!Notify(comm.processes[header.destination], header, comparison.list)) {
        return Break(*endpoint.communicator, NoTransportTo(comm, header.destination), true);
      }
    }
    const MatchKey key{comm.id, comparison.thread, comparison.launch, Comparison::kSite,
                       static_cast<uint64_t>(comparison.round), endpoint.member};
    const std::vector<Arrival> heard = matcher_.early().Take(key);
    if (heard.empty()) return;
    for (const Arrival& arrival : heard) Discard(arrival.announced);
    ++comparison.round;
    comparison.told = false;
    comparison.passed = comparison.LastRoundIsOver(members);
  }
  comparison.list.clear();   // launches that are remembered still have the comparison
  const std::vector<Operation*> held = std::exchange(comparison.held, {});
  endpoint.compared.insert(comparison.program_hash);
  endpoint.comparisons.erase(comparison.program_hash);
  for (Operation* op : held) {
    if (op->held) Begin(op);
  }
}

Status Engine::Impl::Free(Communicator& comm) {
  const Operation* const op = operations_.FindIf(
      [&](const Operation& each) { return !each.over && each.endpoint->communicator == &comm; });
  if (op != nullptr) {
    return {Code::kFailedPrecondition,
            "communicator '" + comm.name + "' cannot be freed while " + *op->text +
                " is under way on it: wait for its result (jax.block_until_ready) before"};
  }
  const int own = comm.endpoints.empty() ? -1 : comm.endpoints.front()->member;
  if (comm.broken.ok()) {
    comm.broken = {Code::kAborted, (own < 0 ? "a rank" : comm.MemberName(own)) +
                                       " has freed the communicator (Communicator.free)"};
  }
  registry_.Free(comm);
  DropMessages(comm.id);
  return Status::Ok();
}

// ---- Errors ------------------------------------------------------------------------------

void Engine::Impl::OnFailed(Operation* op) {
  Communicator& comm = *op->endpoint->communicator;
  if (!comm.broken.ok()) return;
  const int64_t run_id = op->call.run_id;
  if (!comm.remote && failed_runs_.Find(run_id) != nullptr) return;
  const Status why = op->status = {op->status.code(), *op->text + ": " + op->status.message()};
  // On a device the caller hears of it from the next operation on the communicator.
  if (comm.remote || op->device != nullptr || op->launch == nullptr) Break(comm, why, true);
  FailRun(run_id, why);
}

void Engine::Impl::FailRun(int64_t run_id, const Status& why) {
  if (!failed_runs_.Add(run_id, why)) return;
  const std::vector<MatchKey> hit = operations_.KeysOf([&](const Operation& op) {
    return !op.endpoint->communicator->remote && op.call.run_id == run_id && !op.over;
  });
  operations_.EachOf(hit, [&](Operation& op) { executor_.Fail(&op, why); });
  const auto run = static_cast<uint32_t>(run_id);
  matcher_.early().Drop(
      [&](const Header& kept) {
        const Communicator* const comm = registry_.Find(kept.communicator);
        return comm != nullptr && !comm->remote && kept.run == run;
      },
      [this](Announced announced) { Discard(announced); });
}

void Engine::Impl::DropMessages(uint64_t communicator) {
  const auto discard = [this](Announced announced) { Discard(announced); };
  matcher_.early().Drop([&](const Header& kept) { return kept.communicator == communicator; },
                        discard);
  messages_.Drop(communicator, discard);
}

void Engine::Impl::Break(Communicator& comm, const Status& why, bool tell) {
  if (!comm.broken.ok()) return;
  comm.broken = why;
  if (first_error_.ok()) first_error_ = why;
  for (const auto& endpoint : comm.endpoints) {
    for (auto& [hash, comparison] : endpoint->comparisons) comparison->held.clear();
  }
  if (tell) {
    const Header header = AbortHeader(comm);
    const std::string text = AbortText(comm);
    for (int process : std::set<int>(comm.processes.begin(), comm.processes.end())) {
      if (process != wire_.process()) Notify(process, header, text);
    }
  }
  const std::vector<MatchKey> hit = operations_.KeysOf([&](const Operation& op) {
    return op.endpoint->communicator == &comm && !op.over;
  });
  operations_.EachOf(hit, [&](Operation& op) {
    // Where no operation has failed first, each says what it is.
    executor_.Fail(&op, comm.lost ? Status(why.code(), *op.text + ": " + why.message()) : why);
  });
  // Afterwards: a payload that is discarded looks delivered to an operation that has not failed.
  DropMessages(comm.id);
}

}  // namespace jaxccomp
