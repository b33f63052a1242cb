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
  CommunicatorState& state = states_[&comm];
  if (op->plan->tasks[task].kind == TaskKind::kNumber) {
    if (!state.id) state.id = NextId();
    const IssueNumber number{.number = state.numbered++, .communicator = *state.id};
    std::memcpy(NumberOf(*op), &number, sizeof(number));
    return EndTask(op, task, Status::Ok());
  }
  if (!quiesced_.ok()) return EndTask(op, task, quiesced_);
  const auto [number, id] = ReadNumber(*op);
  if (!state.id) state.id = id;
  if (id != *state.id) {
    return EndTask(op, task, {Code::kDataLoss, "the first member names another MPI communicator (" + std::to_string(id) +
                                                   ") than before (" + std::to_string(*state.id) + ")"});
  }
  if (number < state.next || !state.queue.emplace(number, NumberedOperation{op, task}).second) {
    return EndTask(op, task, {Code::kDataLoss, "issue number " + std::to_string(number) +
                                                   " has come twice"});
  }
  Advance(comm, state);
}

void LibraryOperations::Advance(const Communicator& comm, CommunicatorState& state) {
  // Look up the first operation each time, because Begin may end operations and so remove others from the queue.
  while (!state.queue.empty() && state.queue.begin()->first == state.next) {
    const NumberedOperation next = state.queue.begin()->second;
    const bool reverse = next.op->plan->reverse;
    LibraryCommunicator& target = state.by_direction[reverse];
    if (!target.ready) {
      if (target.creation == nullptr) Make(comm, state, reverse);
      return;
    }
    state.queue.erase(state.queue.begin());
    ++state.next;
    Begin(target, next);
  }
}

uint64_t LibraryOperations::NextId() {
  const auto process = static_cast<uint64_t>(process_), processes = static_cast<uint64_t>(processes_);
  return 2 * (ids_++ * processes + process);
}

void LibraryOperations::Make(const Communicator& comm, CommunicatorState& state, bool reverse) {
  LibraryCommunicator& target = state.by_direction[reverse];
  target.creation = std::make_shared<Creation>();
  ++creations_;
  std::vector<int> processes = comm.processes;
  if (reverse) std::ranges::reverse(processes);
  try {
    // Detached: if a rank has died, the library may never return.
    std::thread([creation = target.creation, library = library_, processes = std::move(processes),
                 id = *state.id + reverse] {
      auto made = library->MakeCommunicator(processes, id);
      const std::lock_guard<std::mutex> lock(creation->mutex);
      creation->made = std::move(made);
      creation->over = true;
    }).detach();
  } catch (const std::system_error&) {   // TakeMade reports the error
    target.creation->made = Status(Code::kUnavailable, "no thread can be started to make an MPI communicator: the "
                                                       "limit of processes and threads is reached (ulimit -u, pids.max)");
    target.creation->over = true;
  }
}

bool LibraryOperations::Poll() {
  if (library_ == nullptr) return false;
  bool any = false;
  if (creations_ > 0) {
    for (auto& [comm, state] : states_) {
      for (LibraryCommunicator& target : state.by_direction) any |= TakeMade(*comm, state, target);
    }
  }
  if (!running_.empty()) any |= library_->Poll();
  return any;
}

bool LibraryOperations::TakeMade(const Communicator& comm, CommunicatorState& state, LibraryCommunicator& target) {
  if (target.creation == nullptr || target.ready) return false;
  Status status;
  {
    const std::lock_guard<std::mutex> lock(target.creation->mutex);
    if (!target.creation->over) return false;
    status = target.creation->made.status();
    if (status.ok()) target.communicator = *target.creation->made;
  }
  --creations_;
  target.ready = true;
  if (status.ok()) {
    Advance(comm, state);
  } else if (!state.queue.empty()) {   // one error breaks the engine's communicator, which fails the other operations
    const NumberedOperation next = state.queue.begin()->second;
    state.queue.erase(state.queue.begin());
    EndTask(next.op, next.task, status);
  }
  return true;
}

void LibraryOperations::Begin(const LibraryCommunicator& target, NumberedOperation next) {
  Running& running = running_.emplace_back();
  running.owner = this;
  running.operation = next;
  const std::vector<LibraryCall> calls = CallsOf(*next.op);
  running.left = calls.size() + 1;   // one more keeps `running` alive: each call may end at once
  for (const LibraryCall& call : calls) library_->Start(target.communicator, call, &running);
  running.Done(Status::Ok());
}

void LibraryOperations::Running::Done(Status s) {
  if (status.ok()) status = std::move(s);
  if (--left == 0) owner->End(this);
}

void LibraryOperations::End(Running* running) {
  const NumberedOperation next = running->operation;
  Status status = std::move(running->status);
  running_.remove_if([&](const Running& each) { return &each == running; });
  EndTask(next.op, next.task, std::move(status));
}

void LibraryOperations::OnFailed(Operation* op) {
  const auto found = states_.find(op->endpoint->communicator);
  if (found == states_.end()) return;
  auto& queue = found->second.queue;
  const auto mine = std::ranges::find_if(queue, [&](const auto& each) { return each.second.op == op; });
  if (mine == queue.end()) return;
  const TaskId task = mine->second.task;
  queue.erase(mine);
  EndTask(op, task, {Code::kAborted, "the operation has failed"});
}

bool LibraryOperations::IsRunning(const Operation& op) const {
  return std::ranges::any_of(running_, [&](const Running& each) { return each.operation.op == &op; });
}

void LibraryOperations::Quiesce(const Status& why) {
  if (library_ == nullptr || !quiesced_.ok()) return;
  quiesced_ = why;
  library_->Quiesce(why);
}

}  // namespace jaxccomp
