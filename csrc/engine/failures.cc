#include "engine/failures.h"

#include <algorithm>
#include <set>
#include <utility>

#include "matching/comparison.h"

namespace jaxccomp {
namespace {

constexpr int kMaxPolls = 1000;   // an endless stream of messages must not delay the failure for ever
constexpr const char* kAdvice = ". The others can go on: comm.shrink()";
constexpr size_t kLongestAbortText = kAlongBytes - 256;  // 256: for the reporter's name

std::string AbortText(const Communicator& comm) {
  std::string text = comm.revoked.message().substr(0, kLongestAbortText);
  if (!comm.endpoints.empty()) {
    text += "\n  (reported by " + comm.MemberName(comm.endpoints.front()->member) + ")";
  }
  return text;
}

}  // namespace

void Failures::OnFailed(Operation* op) {
  Communicator& comm = *op->endpoint->communicator;
  if (!comm.revoked.ok()) return;
  const int64_t run_id = op->call.run_id;
  if (!comm.remote && failed_runs_.Find(run_id) != nullptr) return;
  const Status why = op->status = {op->status.code(), *op->text + ": " + op->status.message()};
  flight_writer_.OnFailure(why.message());
  if (comm.remote || op->launch == nullptr) Revoke(comm, why, Tell::kMembers);
  FailRun(run_id, why);
}

void Failures::FailRun(int64_t run_id, const Status& why) {
  if (!failed_runs_.Add(run_id, why)) return;
  const std::vector<MatchKey> hit = operations_.KeysOf([&](const Operation& op) {
    return !op.endpoint->communicator->remote && op.call.run_id == run_id && !op.over();
  });
  operations_.EachOf(hit, [&](Operation& op) { executor_.Fail(&op, why); });
  const auto run = static_cast<uint32_t>(run_id);
  matcher_.early().Drop(
      [&](const Header& kept) {
        const Communicator* const comm = registry_.Find(kept.communicator);
        return comm != nullptr && !comm->remote && kept.run == run;
      },
      [this](Announced announced) { router_.Discard(announced); });
}

void Failures::Revoke(Communicator& comm, const Status& why, Tell tell, Cause cause) {
  if (!comm.revoked.ok()) return;
  flight_writer_.OnFailure(why.message());   // first, because the file shows which operations were open
  comm.revoked = why;
  comm.member_failed = cause == Cause::kMember;
  for (const auto& endpoint : comm.endpoints) {
    for (auto& [hash, comparison] : endpoint->comparisons) comparison->held.clear();   // the operations fail below
  }
  if (tell == Tell::kMembers) ReportRevoked(comm);
  const std::vector<MatchKey> hit = operations_.KeysOf([&](const Operation& op) {
    return op.endpoint->communicator == &comm && !op.over();
  });
  operations_.EachOf(hit, [&](Operation& op) {
    // If a member has failed, no operation failed first, so each error names its own operation.
    executor_.Fail(&op, comm.member_failed ? Status(why.code(), *op.text + ": " + why.message()) : why);
  });
  // Discard messages last: discarding a payload completes its send, so senders in this process must be marked as failed
  // before.
  DropMessages(comm.id);
}

void Failures::ReportRevoked(const Communicator& comm) {
  const Header header = AbortHeader(comm);
  const std::string text = AbortText(comm);
  for (int process : std::set<int>(comm.processes.begin(), comm.processes.end())) {
    if (process != router_.process()) router_.Notify(process, header, text);
  }
}

void Failures::DropMessages(uint64_t communicator) {
  const auto discard = [this](Announced announced) { router_.Discard(announced); };
  matcher_.early().Drop(
      [&](const Header& kept) { return kept.communicator == communicator; }, discard);
  messages_.Drop(communicator, discard);
}

Header Failures::AbortHeader(const Communicator& comm) const {
  Header header;
  header.type = MessageType::kAbort;
  header.communicator = comm.id;
  header.destination = -1;
  header.source = -1;
  header.source_process = router_.process();
  header.root = comm.member_failed;
  return header;
}

void Failures::AnswerRevoked(const Communicator& comm, const Header& probe) {
  if (probe.source < 0 || probe.source >= comm.size()) return;
  const int process = comm.processes[probe.source];
  if (process != router_.process()) router_.Notify(process, AbortHeader(comm), AbortText(comm));
}

void Failures::OnAbort(const Header& header, std::span<const std::byte> payload) {
  const Status why(Code::kAborted, std::string(TextOf(payload)));
  if (Communicator* const comm = registry_.Find(header.communicator)) {
    return Revoke(*comm, why, Tell::kNobody, header.root != 0 ? Cause::kMember : Cause::kOperation);
  }
  registry_.BreakUnborn(header.communicator, why);
  DropMessages(header.communicator);
}

Status Failures::Free(Communicator& comm) {
  const Operation* const op = operations_.FindIf(
      [&](const Operation& each) { return !each.over() && each.endpoint->communicator == &comm; });
  if (op != nullptr) {
    return {Code::kFailedPrecondition,
            "communicator '" + comm.name + "' cannot be freed while " + *op->text +
                " is running on it: wait for its result first (jax.block_until_ready)"};
  }
  const int own = comm.endpoints.empty() ? -1 : comm.endpoints.front()->member;
  if (comm.revoked.ok()) {
    comm.revoked = {Code::kAborted, (own < 0 ? "a rank" : comm.MemberName(own)) +
                                       " has freed the communicator (Communicator.free)"};
  }
  registry_.Free(comm);
  DropMessages(comm.id);
  return Status::Ok();
}

void Failures::OnPeerFailed(int process, const Status& why) {
  if (process >= 0) return MarkFailed(process, why, true, true);
  // A message was so corrupt that its sender is unknown.
  std::set<Communicator*> affected;
  operations_.Each([&](const Operation& op) { affected.insert(op.endpoint->communicator); });
  for (Communicator* comm : affected) Revoke(*comm, why, Tell::kMembers);
}

void Failures::OnProcessFailed(const Header& header, std::span<const std::byte> payload) {
  const int process = header.root;
  if (process < 0 || process >= registry_.processes()) return;
  // Ignore reports from a process that counts as dead: it may have been stopped and, on waking, have timed out all
  // others.
  const Peers::Failure* const teller = peers_.Find(header.source_process);
  if (teller != nullptr && teller->dead) return;
  const bool itself = process == header.source_process;
  if (!itself && group_agrees_) return Report(process, std::string(TextOf(payload)));
  MarkFailed(process, {Code::kAborted, std::string(TextOf(payload))}, !itself, false);
}

void Failures::MarkFailed(int process, const Status& why, bool dead, bool first_hand) {
  if (process == router_.process()) return;
  if (!peers_.MarkFailed(process, why, dead)) return;
  if (first_hand) ReportFailed(process, why.message());
  for (Communicator* comm : registry_.All()) RevokeIfMemberFailed(*comm);
}

void Failures::Report(int process, const std::string& why) {
  if (process == router_.process() || peers_.Find(process) != nullptr) return;
  peers_.Report(process, why);
  for (Communicator* comm : registry_.All()) {
    if (std::ranges::find(comm->processes, process) == comm->processes.end()) continue;
    Revoke(*comm, {Code::kAborted, why + kAdvice}, Tell::kNobody, Cause::kMember);
  }
}

void Failures::SetFailed(int process, const std::string& why) {
  MarkFailed(process, {Code::kUnavailable, why}, true, false);
  if (router_.HasRemote()) router_.remote()->Disconnect(process);
}

void Failures::ReportFailed(int process, const std::string& why) {
  Header header;
  header.type = MessageType::kProcessFailed;
  header.root = process;
  header.source = header.destination = -1;
  const int own = header.source_process = router_.process();
  for (int other = 0; other < registry_.processes(); ++other) {
    const Peers::Failure* const failure = peers_.Find(other);
    if (other == own || other == process || (failure != nullptr && failure->dead)) continue;
    router_.Notify(other, header, why.substr(0, kLongestAbortText));
  }
}

void Failures::Announce(const std::string& how) {
  if (lock_.stopped || announced_ || registry_.processes() == 1) return;
  announced_ = true;
  const int own = router_.process();
  ReportFailed(own, "rank " + std::to_string(own) + " of the world " + how);
}

void Failures::RevokeIfMemberFailed(Communicator& comm) {
  if (peers_.failed().empty() || !comm.revoked.ok()) return;
  for (int process : comm.processes) {
    const Peers::Failure* const failure = peers_.Find(process);
    if (failure == nullptr) continue;
    return Revoke(comm, {failure->why.code(), failure->why.message() + kAdvice}, Tell::kNobody, Cause::kMember);
  }
}

void Failures::ReadNews() {
  for (int i = 0; i < kMaxPolls && lock_.polling_callers == 0 && !lock_.stopped && router_.Poll(); ++i) {
  }
}

void Failures::LookForDead() {
  ReadNews();   // a dead process may have sent the reason before it died
  if (lock_.stopped) return;
  for (int process : peers_.FindDead()) {
    if (router_.HasRemote()) router_.remote()->OnProcessDied(process);
    MarkFailed(process,
         {Code::kUnavailable, "rank " + std::to_string(process) +
                                  " of the world has died: its process was killed, or ended "
                                  "without a report"},
         true, true);
  }
}

}  // namespace jaxccomp
