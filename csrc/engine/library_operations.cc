#include "engine/library_operations.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace jaxccomp {
namespace {

void EndTask(Operation* op, TaskId task, Status status) {
  op->transfers[task].Done(std::move(status));
}

// Returns the scratch block with the issue number. Plans by a library have only this block.
std::byte* NumberOf(const Operation& op) { return op.scratch[0].buffer.get(); }

IssueNumber ReadNumber(const Operation& op) {
  IssueNumber number;
  std::memcpy(&number, NumberOf(op), sizeof(number));
  return number;
}

// Converts the numbers of rows of blocks of `t` to numbers of values.
std::vector<int> ValuesOf(const std::vector<int64_t>& rows, const Tensor& t) {
  const int64_t row_values = t.rows > 0 ? t.bytes / SizeBytes(t.dtype) / t.rows : 0;
  std::vector<int> values;
  for (const int64_t each : rows) values.push_back(static_cast<int>(each * row_values));
  return values;
}

std::vector<LibraryCall> CallsOf(const Operation& op) {
  const auto collective = static_cast<Collective>(op.header.collective);
  LibraryCall call;
  call.collective = collective;
  call.reduce_op = op.plan->reduce_op;
  call.root = op.header.root;
  if (collective == Collective::kBarrier) return {call};
  const CollectiveInfo& info = Info(collective);
  std::vector<LibraryCall> calls;
  for (size_t i = 0; i < op.call.inputs.size(); ++i) {
    const Tensor& in = op.call.inputs[i];
    const int64_t blocks = info.input == Blocks::kPerRank ? op.endpoint->communicator->size() : 1;
    call.dtype = in.dtype;
    call.count = in.bytes / SizeBytes(in.dtype) / blocks;
    call.in = in.data;
    call.out = op.call.outputs[i].data;
    const BlockRows& rows = op.plan->library_rows;
    if (!rows.input.empty()) {
      call.gives = ValuesOf(rows.input, in);
      call.takes = ValuesOf(rows.output, op.call.outputs[i]);
      calls.push_back(call);   // even without values: other ranks may have some
    } else if (call.count > 0) {   // shapes are equal on all ranks, so all skip the same tensors
      calls.push_back(call);
    }
  }
  return calls;
}

}  // namespace

Status LibraryOperations::Check(const OpSpec& spec, const Communicator& comm) const {
  if (!spec.mpi || comm.size() == 1 || library_ != nullptr) return Status::Ok();
  return {Code::kUnavailable, spec.ToString() + ": backend=\"mpi\" needs processes that MPI has joined: "
                                                "start the program with mpiexec, or leave "
                                                "backend=\"auto\""};
}

void LibraryOperations::Start(Operation* op, TaskId task) {
  const Communicator& comm = *op->endpoint->communicator;
  Team& team = teams_[&comm];
  if (op->plan->tasks[task].kind == TaskKind::kNumber) {
    if (!team.id) team.id = NextId();
    const IssueNumber number{.number = team.numbered++, .communicator = *team.id};
    std::memcpy(NumberOf(*op), &number, sizeof(number));
    return EndTask(op, task, Status::Ok());
  }
  if (!frozen_.ok()) return EndTask(op, task, frozen_);
  const auto [number, id] = ReadNumber(*op);
  if (!team.id) team.id = id;
  if (id != *team.id) {
    return EndTask(op, task, {Code::kDataLoss, "the first member names another MPI communicator (" + std::to_string(id) +
                                                   ") than before (" + std::to_string(*team.id) + ")"});
  }
  if (number < team.next || !team.due.emplace(number, Due{op, task}).second) {
    return EndTask(op, task, {Code::kDataLoss, "issue number " + std::to_string(number) +
                                                   " has come twice"});
  }
  Advance(comm, team);
}

void LibraryOperations::Advance(const Communicator& comm, Team& team) {
  // Look up the first operation each time, because Begin may end operations and so remove others from `due`.
  while (!team.due.empty() && team.due.begin()->first == team.next) {
    const Due due = team.due.begin()->second;
    const bool reverse = due.op->plan->reverse;
    Side& side = team.sides[reverse];
    if (!side.ready) {
      if (side.making == nullptr) Make(comm, team, reverse);
      return;
    }
    team.due.erase(team.due.begin());
    ++team.next;
    Begin(side, due);
  }
}

uint64_t LibraryOperations::NextId() {
  const auto process = static_cast<uint64_t>(process_), processes = static_cast<uint64_t>(processes_);
  return 2 * (ids_++ * processes + process);
}

void LibraryOperations::Make(const Communicator& comm, Team& team, bool reverse) {
  Side& side = team.sides[reverse];
  side.making = std::make_shared<Making>();
  ++making_;
  std::vector<int> processes = comm.processes;
  if (reverse) std::ranges::reverse(processes);
  try {
    // Detached: if a rank has died, the library may never return.
    std::thread([making = side.making, library = library_, processes = std::move(processes), id = *team.id + reverse] {
      auto made = library->MakeCommunicator(processes, id);
      const std::lock_guard<std::mutex> lock(making->mutex);
      making->made = std::move(made);
      making->over = true;
    }).detach();
  } catch (const std::system_error&) {   // TakeMade reports the error
    side.making->made = Status(Code::kUnavailable, "no thread can be started to make an MPI communicator: the limit of "
                                                   "processes and threads is reached (ulimit -u, pids.max)");
    side.making->over = true;
  }
}

bool LibraryOperations::Poll() {
  if (library_ == nullptr) return false;
  bool any = false;
  if (making_ > 0) {
    for (auto& [comm, team] : teams_) {
      for (Side& side : team.sides) any |= TakeMade(*comm, team, side);
    }
  }
  if (!running_.empty()) any |= library_->Poll();
  return any;
}

bool LibraryOperations::TakeMade(const Communicator& comm, Team& team, Side& side) {
  if (side.making == nullptr || side.ready) return false;
  Status status;
  {
    const std::lock_guard<std::mutex> lock(side.making->mutex);
    if (!side.making->over) return false;
    status = side.making->made.status();
    if (status.ok()) side.communicator = *side.making->made;
  }
  --making_;
  side.ready = true;
  if (status.ok()) {
    Advance(comm, team);
  } else if (!team.due.empty()) {   // one error breaks the engine's communicator, which fails the other operations
    const Due due = team.due.begin()->second;
    team.due.erase(team.due.begin());
    EndTask(due.op, due.task, status);
  }
  return true;
}

void LibraryOperations::Begin(const Side& side, Due due) {
  Running& running = running_.emplace_back();
  running.owner = this;
  running.what = due;
  const std::vector<LibraryCall> calls = CallsOf(*due.op);
  running.left = calls.size() + 1;   // one more keeps `running` alive: each call may end at once
  for (const LibraryCall& call : calls) library_->Start(side.communicator, call, &running);
  running.Done(Status::Ok());
}

void LibraryOperations::Running::Done(Status s) {
  if (status.ok()) status = std::move(s);
  if (--left == 0) owner->End(this);
}

void LibraryOperations::End(Running* running) {
  const Due due = running->what;
  Status status = std::move(running->status);
  running_.remove_if([&](const Running& each) { return &each == running; });
  EndTask(due.op, due.task, std::move(status));
}

void LibraryOperations::OnFailed(Operation* op) {
  const auto found = teams_.find(op->endpoint->communicator);
  if (found == teams_.end()) return;
  auto& due = found->second.due;
  const auto mine = std::ranges::find_if(due, [&](const auto& each) { return each.second.op == op; });
  if (mine == due.end()) return;
  const TaskId task = mine->second.task;
  due.erase(mine);
  EndTask(op, task, {Code::kAborted, "the operation has failed"});
}

bool LibraryOperations::IsRunning(const Operation& op) const {
  return std::ranges::any_of(running_, [&](const Running& each) { return each.what.op == &op; });
}

void LibraryOperations::Freeze(const Status& why) {
  if (library_ == nullptr || !frozen_.ok()) return;
  frozen_ = why;
  library_->Freeze(why);
}

}  // namespace jaxccomp
