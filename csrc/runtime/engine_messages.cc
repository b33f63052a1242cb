// What comes from other ranks, and what is told to them.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "runtime/engine_impl.h"

namespace jaxccomp {
namespace {

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
  if (header.type == MessageType::kPresent) return OnPresent(header);
  const auto found = operations_.find(MatchKey::Of(header));
  Operation* const op = found == operations_.end() ? nullptr : found->second.get();
  const bool here = op != nullptr && !op->over;
  const bool same_program = op != nullptr && op->header.program_hash == header.program_hash;
  if (!same_program && endpoint != nullptr && options_.check_programs) {
    if (const Endpoint::Launch* launch = FindMismatch(*endpoint, header)) {
      Discard(announced);
      return RefuseOtherProgram(*endpoint, *launch, header, payload);
    }
  }
  if (here && header.signature != op->header.signature) {
    Discard(announced);
    return executor_.Fail(op, MismatchError(*op->endpoint, *op->text, header));
  }
  if (header.type == MessageType::kProbe) {
    if (endpoint != nullptr) OnProbe(*endpoint, header, here);
    return;
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
  matcher_.Keep(header, payload, announced);
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
  header.sequence = ~uint64_t{0};
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

void Engine::Impl::RefuseOtherProgram(Endpoint& endpoint, const Endpoint::Launch& launch,
                                      const Header& header, std::span<const std::byte> payload) {
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
  // Who compares programs asks for the launch, not for an operation of it.
  const bool came = header.tag != 0 ? HasComeTo(endpoint, header)
                                    : here || endpoint.recent.Find(MatchKey::Of(header)) != nullptr;
  if (!came) return;
  Header answer = header;
  answer.type = MessageType::kPresent;
  std::swap(answer.source, answer.destination);
  Notify(comm.processes[header.source], answer);
}

void Engine::Impl::OnPresent(const Header& header) {
  const auto found = operations_.find(MatchKey::Of(header));
  if (found == operations_.end() || found->second == nullptr) return;
  Operation& op = *found->second;
  const int members = op.endpoint->communicator->size();
  if (header.source < 0 || header.source >= members) return;
  op.present.resize(static_cast<size_t>(members));
  op.present[header.source] = 1;
}

void Engine::Impl::OnPeerLost(int process, const Status& why) {
  executor_.loans().Lose(process);
  executor_.direct().Lose(process);
  std::set<Communicator*> affected;
  for (const auto& [key, op] : operations_) {
    Communicator* const comm = op->endpoint->communicator;
    const auto& members = comm->processes;
    // A process below 0: a message was broken so badly that its sender is unknown.
    const bool member = std::find(members.begin(), members.end(), process) != members.end();
    if (process < 0 || member) affected.insert(comm);
  }
  for (Communicator* comm : registry_.All()) {
    const auto& members = comm->processes;
    const bool member = std::find(members.begin(), members.end(), process) != members.end();
    if (comm->outside && (process < 0 || member)) affected.insert(comm);
  }
  for (Communicator* comm : affected) Break(*comm, why, true);
}

// ---- The comparison of programs ----------------------------------------------------------

Comparison* Engine::Impl::PendingComparison(Endpoint& endpoint, Endpoint::Launch& launch) {
  if (!options_.check_programs || endpoint.communicator->size() == 1) return nullptr;
  if (launch.comparison == nullptr) {
    auto& known = endpoint.comparisons[launch.program_hash];
    if (known == nullptr) {
      known = std::make_shared<Comparison>();
      known->program_hash = launch.program_hash;
      known->launch = launch.number;
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
    const MatchKey key{comm.id, comparison.launch, Comparison::kSite,
                       static_cast<uint64_t>(comparison.round), endpoint.member};
    const std::vector<Arrival> heard = matcher_.Take(key);
    if (heard.empty()) return;
    for (const Arrival& arrival : heard) Discard(arrival.announced);
    ++comparison.round;
    comparison.told = false;
    comparison.passed = comparison.LastRoundIsOver(members);
  }
  comparison.list.clear();
  const std::vector<Operation*> held = std::exchange(comparison.held, {});
  for (Operation* op : held) {
    if (op->held) Begin(op);
  }
}

// ---- Errors ------------------------------------------------------------------------------

void Engine::Impl::OnFailed(Operation* op) {
  Communicator& comm = *op->endpoint->communicator;
  if (!comm.broken.ok()) return;
  op->status = {op->status.code(), *op->text + ": " + op->status.message()};
  Break(comm, op->status, true);
}

void Engine::Impl::DropMessages(uint64_t communicator) {
  const auto discard = [this](Announced announced) { Discard(announced); };
  matcher_.Drop(communicator, discard);
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
  // By key: the failure of one may end others.
  std::vector<MatchKey> hit;
  for (const auto& [key, op] : operations_) {
    if (op != nullptr && op->endpoint->communicator == &comm && !op->over) hit.push_back(key);
  }
  for (const MatchKey& key : hit) {
    if (auto found = operations_.find(key); found != operations_.end()) {
      executor_.Fail(found->second.get(), why);
    }
  }
  // Afterwards: a payload that is discarded looks delivered to an operation that has not failed.
  DropMessages(comm.id);
}

}  // namespace jaxccomp
