#include "execution/executor.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "execution/compute.h"
#include "transport/pieces.h"

namespace jaxccomp {
namespace {

bool UsesCodec(const PlannedTask& task) {
  return (task.kind == TaskKind::kEncode || task.kind == TaskKind::kDecode || task.kind == TaskKind::kMerge ||
          task.kind == TaskKind::kResidual);
}

}  // namespace

void TransferDone::Done(Status status) {
  operation->executor->TransferDone(operation, task, std::move(status));
}

void Executor::Begin(Operation* op) {
  const Plan& plan = *op->plan;
  const size_t count = plan.tasks.size();
  op->executor = this;
  op->number = ++begun_;
  op->open_deps.resize(count);
  op->waiting.assign(count, 0);
  op->transfers.resize(count);
  op->scratch.resize(plan.scratch_bytes.size());
  op->code.resize(plan.code_bytes.size());
  for (size_t i = 0; i < op->scratch.size(); ++i) op->scratch[i].uses_left = plan.scratch_uses[i];
  for (size_t i = 0; i < op->code.size(); ++i) op->code[i].uses_left = plan.code_uses[i];
  op->started.clear();
  if (trace_.HasRoom()) {
    op->started.resize(count);
    op->trace_number = trace_.Add(op->caller.row);
  }
  op->budget.Begin(plan);
  op->open_tasks = static_cast<int64_t>(count);
  for (size_t i = 0; i < count; ++i) {
    op->open_deps[i] = plan.tasks[i].dep_count;
    op->transfers[i].operation = op;
    op->transfers[i].task = static_cast<TaskId>(i);
  }
  if (const int64_t bytes = OperandBytes(*op); bytes > kLightBytes) {
    ++op->in_flight;
    return Queue({op, kCopyOperands}, bytes);
  }
  CopyOperands(*op);
  StartTasks(op);
}

void Executor::StartTasks(Operation* op) {
  const std::vector<PlannedTask>& tasks = op->plan->tasks;
  // Start sends first, because other ranks wait for them.
  for (const bool sends : {true, false}) {
    for (size_t i = 0; i < tasks.size(); ++i) {
      const bool is_send = tasks[i].kind == TaskKind::kSend;
      if (op->open_deps[i] == 0 && is_send == sends) MakeReady(op, static_cast<TaskId>(i));
    }
  }
  CheckOver(op);  // a schedule may have no tasks
}

void Executor::MakeReady(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  const bool transfer = t.kind == TaskKind::kSend || t.kind == TaskKind::kRecv;
  const bool gathers = t.kind == TaskKind::kSend && memory_.StagedBytes(*op, t) > 0;
  const bool light = (transfer && !gathers) || IsOfLibrary(t.kind) || t.bytes <= kLightBytes;
  if (light) {
    ready_.push_back({op, task});
  } else {
    Queue({op, task}, t.bytes);
  }
}

std::pair<bool, uint64_t> Executor::Turn(const Item& item) {
  if (item.task == kCopyOperands) return {true, TurnOf(item.op->number, 0)};
  if (item.task == kFill) return {true, TurnOf(item.op->number, std::numeric_limits<int32_t>::max())};
  const PlannedTask& task = item.op->plan->tasks[item.task];
  return {task.kind != TaskKind::kSend, TurnOf(item.op->number, task.lane)};
}

void Executor::Insert(Item item, std::deque<Item>* queue) {
  const auto place = std::ranges::upper_bound(*queue, Turn(item), {}, Turn);
  queue->insert(place, std::move(item));
}

void Executor::Queue(Item item, int64_t bytes) {
  const Plan& plan = *item.op->plan;
  const bool is_slow = plan.codec != nullptr && plan.codec->traits().slow && item.task >= 0 &&
                       UsesCodec(plan.tasks[item.task]);
  const bool large = (bytes > kLargeBytes || is_slow) && !runs_large_inline_;
  std::deque<Item>& queue = large ? large_ : heavy_;
  Insert(std::move(item), &queue);
  if (large || heavy_.size() > 1) listener_->OnBacklog(large);
}

void Executor::RunLargeInline() {
  runs_large_inline_ = true;
  for (Item& item : std::exchange(large_, {})) Insert(std::move(item), &heavy_);
}

std::vector<Piece> Executor::PiecesOf(const Operation& op, PartRange range) const {
  std::vector<Piece> pieces;
  pieces.reserve(static_cast<size_t>(range.count));
  for (int32_t i = 0; i < range.count; ++i) {
    const Part& part = op.plan->parts[range.first + i];
    std::byte* const at = AddressOf(op, part);
    // Adjacent parts become one piece.
    if (!pieces.empty() &&
        static_cast<std::byte*>(pieces.back().data) + pieces.back().bytes == at) {
      pieces.back().bytes += part.bytes;
    } else {
      pieces.push_back({at, part.bytes});
    }
  }
  return pieces;
}

void Executor::StartTask(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  if (t.kind == TaskKind::kRecv) {
    const Arrival* const found = op->arrivals.Find(task);
    if (found == nullptr) {
      op->waiting[task] = 1;
      return;
    }
    if (!memory_.Admit(op, task, found->header.payload_bytes)) return;
    Arrival arrival = op->arrivals.Take(task);
    StartReceive(op, task, IncomingMessage(arrival));
    return;
  }
  if (!memory_.Admit(op, task, 0)) return;
  Status status = memory_.Prepare(op, task, 0);
  if (!status.ok()) return Fail(op, std::move(status));
  TaskStarted(op, task);
  if (t.kind == TaskKind::kSend) return StartSend(op, task);
  if (IsOfLibrary(t.kind)) {
    ++op->in_flight;
    return library_path_->Start(op, task);
  }
  status = Compute(*op, t);
  if (!status.ok()) return Fail(op, std::move(status));
  TaskDone(op, task);
}

void Executor::StartSend(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  const Communicator& comm = *op->endpoint->communicator;
  const int process = comm.processes[t.peer];
  Transport* const transport = router_->To(process);
  if (transport == nullptr) {
    return Fail(op, NoTransportTo(comm, t.peer));
  }
  Header header = op->header;
  header.destination = t.peer;
  header.tag = t.tag;
  header.turn = TurnOf(op->number, t.lane);
  std::vector<Piece> pieces;
  if (t.src_code >= 0) {
    const Operation::Block& block = op->code[t.src_code];
    pieces = {{block.buffer.get(), block.used_bytes}};
  } else if (op->transfers[task].staging != nullptr) {
    pieces = {{op->transfers[task].staging.get(), op->transfers[task].staging_bytes}};
  } else {
    pieces = PiecesOf(*op, t.sources[0]);
  }
  header.payload_bytes = TotalBytes(pieces);
  MessageKnown(op, task, header);
  CountSent(op, header.payload_bytes, t.bytes, process);
  if (t.peer == op->endpoint->member) return SendCopy(op, task, header, pieces);
  ++op->in_flight;
  op->waiting[task] = 1;
  op->transfers[task].under_way = true;
  transport->Send(process, header, pieces, &op->transfers[task]);
}

void Executor::CountSent(Operation* op, int64_t bytes, int64_t raw_bytes, int process) {
  const int64_t remote = process == router_->process() ? 0 : bytes;
  CollectiveStats& stats = (*stats_)[op->header.collective];
  stats.sent_bytes += bytes;
  stats.raw_bytes += raw_bytes;
  stats.remote_bytes += remote;
  op->caller.cost.sent_bytes += bytes;
  op->caller.cost.remote_bytes += remote;
}

void Executor::SendCopy(Operation* op, TaskId task, Header header,
                        const std::vector<Piece>& pieces) {
  struct Copy final : Completion {
    std::unique_ptr<std::byte[]> bytes;
    void Done(Status) override { delete this; }
  };
  auto* copy = new Copy;
  copy->bytes.reset(new (std::nothrow) std::byte[static_cast<size_t>(header.payload_bytes)]);
  if (copy->bytes == nullptr) {
    delete copy;
    return Fail(op, {Code::kUnavailable, "no memory for a message of " + std::to_string(header.payload_bytes) +
                                             " bytes of this rank to itself"});
  }
  Gather(pieces, copy->bytes.get());
  const Piece piece{copy->bytes.get(), header.payload_bytes};
  router_->To(router_->process())->Send(router_->process(), header, {&piece, 1}, copy);
  TaskDone(op, task);
}

void Executor::Arrived(Operation* op, const IncomingMessage& message) {
  const Header& header = message.header;
  const auto found = op->plan->receives.find(Plan::ReceiveKey(header.source, header.tag));
  if (found == op->plan->receives.end()) {
    router_->Discard(message.announced);
    return Fail(op, {Code::kFailedPrecondition,
                     op->endpoint->communicator->MemberName(header.source) +
                         " runs another algorithm or other sizes for this operation; all ranks "
                         "must use the same options and the same build"});
  }
  op->liveness.last_progress = Operation::Clock::now();
  const TaskId task = found->second;
  MessageKnown(op, task, header);
  const bool is_status = op->ends.status && header.tag == kStatusMessage;   // not from a peer
  if (!is_status) op->caller.cost.received_bytes += header.payload_bytes;
  if (header.source != op->endpoint->member && op->liveness.first_message == Operation::Clock::time_point()) {
    op->liveness.first_message = op->liveness.last_progress;
  }
  if (op->waiting[task] && memory_.Admit(op, task, header.payload_bytes)) {
    op->waiting[task] = 0;
    return StartReceive(op, task, message);
  }
  op->waiting[task] = 0;
  if (op->arrivals.Put(task, message.Keep(router_))) return;
  router_->Discard(message.announced);
  Fail(op, {Code::kDataLoss, "a message of " + op->endpoint->communicator->MemberName(header.source) +
                                 " has come twice"});
}

void Executor::StartReceive(Operation* op, TaskId task, const IncomingMessage& message) {
  const PlannedTask& t = op->plan->tasks[task];
  const int64_t bytes = message.header.payload_bytes;
  const Announced announced = message.announced;
  auto refuse = [&](Status status) {
    router_->Discard(announced);
    Fail(op, std::move(status));
  };

  auto refuse_other_size = [&](int64_t expected_bytes) {
    refuse({Code::kFailedPrecondition,
            op->endpoint->communicator->MemberName(t.peer) + " sent " + std::to_string(bytes) +
                " bytes where " + std::to_string(expected_bytes) +
                " are expected: the shapes or sizes differ between the ranks"});
  };
  if (t.dst_code >= 0 && (bytes < 0 || bytes > op->plan->code_bytes[t.dst_code])) {
    return refuse({Code::kDataLoss, "an encoded message of " + std::to_string(bytes) +
                                        " bytes is too long for its values"});
  }
  TaskStarted(op, task);
  Status status = memory_.Prepare(op, task, bytes);
  if (!status.ok()) return refuse(std::move(status));
  std::vector<Piece> pieces;
  if (t.dst_code >= 0) {
    pieces = {{op->code[t.dst_code].buffer.get(), bytes}};
  } else {
    pieces = PiecesOf(*op, t.dst);
    if (TotalBytes(pieces) != bytes) return refuse_other_size(TotalBytes(pieces));
  }
  if (announced.process < 0) {
    Scatter(message.payload.data(), pieces);
    return TaskDone(op, task);
  }
  ++op->in_flight;
  if (Transport::Reader read = router_->To(announced.process)->StartRead(announced)) {
    Queue({op, task, std::move(read), announced}, bytes);
  } else {
    Pull(op, task, announced, pieces);
  }
}

void Executor::Pull(Operation* op, TaskId task, Announced announced, std::span<const Piece> into) {
  op->transfers[task].under_way = true;
  router_->To(announced.process)->Pull(announced, into, &op->transfers[task]);
}

void Executor::TransferDone(Operation* op, TaskId task, Status status) {
  --op->in_flight;
  op->waiting[task] = 0;
  op->transfers[task].under_way = false;
  if (BufferPool::Buffer staging = std::move(op->transfers[task].staging)) {
    memory_.GiveStaging(std::move(staging), op->transfers[task].staging_bytes);
  }
  op->liveness.last_progress = Operation::Clock::now();
  if (op->failed()) return CheckOver(op);
  if (status.code() == Code::kAborted && op->plan->tasks[task].kind == TaskKind::kRecv) {
    // The sender has cancelled the payload because its operation failed. Wait for the message with the reason (kAbort),
    // maybe from another rank. If that message is lost, the sender's answer to a probe gives the reason.
    op->waiting[task] = 1;
    return;
  }
  if (!status.ok()) return Fail(op, std::move(status));
  TaskDone(op, task);
}

void Executor::Ended(Operation* op, TaskId task) {
  if (op->started.empty() || !trace_.recording()) return;
  const PlannedTask& t = op->plan->tasks[task];
  trace_.Add({.operation = op->trace_number,
              .bytes = t.bytes,
              .lane = t.lane,
              .peer = t.kind == TaskKind::kSend || t.kind == TaskKind::kRecv ? t.peer : -1,
              .kind = t.kind,
              .collective = op->plan->algorithm->collective},
             op->started[task]);
}

void Executor::TaskDone(Operation* op, TaskId task) {
  Ended(op, task);
  const PlannedTask& t = op->plan->tasks[task];
  memory_.TaskDone(op, t);
  for (TaskId next : t.dependents) {
    if (--op->open_deps[next] == 0) MakeReady(op, next);
  }
  --op->open_tasks;
  for (TaskId parked : op->budget.TaskDone(*op->plan, t.lane)) MakeReady(op, parked);
  CheckOver(op);
}

void Executor::Fail(Operation* op, Status status) {
  if (op->failed() || op->over()) return;
  // Keep the operation open: the code below may end transfers of this operation and of others.
  ++op->in_flight;
  std::atomic_ref(op->cancelled).store(true, std::memory_order_relaxed);
  op->liveness.failed_at = Operation::Clock::now();
  op->status = std::move(status);
  // Discard these at the end: Discard completes sends in this process, which may queue more items.
  std::vector<Announced> unwanted;
  for (auto* queue : {&ready_, &heavy_, &large_}) {
    std::erase_if(*queue, [&](const Item& item) {
      if (item.op != op) return false;
      if (item.task < 0) --op->in_flight;
      if (item.read) {
        unwanted.push_back(item.announced);
        --op->in_flight;
      }
      return true;
    });
  }
  for (const auto& [of, arrival] : op->arrivals.all()) {
    if (arrival.announced.process >= 0) unwanted.push_back(arrival.announced);
  }
  op->arrivals.Clear();
  op->budget.Cancel();
  if (op->plan->by_library) library_path_->OnFailed(op);
  for (Announced announced : unwanted) router_->Discard(announced);
  listener_->OnFailed(op);
  if (--op->in_flight > 0) failed_.push_back(op);
  CheckOver(op);
}

bool Executor::CancelTransfers(Operation* op, bool force) {
  const std::vector<PlannedTask>& tasks = op->plan->tasks;
  bool held = false;
  // Keep the operation open during the loop: each Cancel may complete its last transfer.
  ++op->in_flight;
  for (size_t i = 0; i < op->transfers.size(); ++i) {
    auto& transfer = op->transfers[i];
    if (!transfer.under_way) continue;
    const int process = op->endpoint->communicator->processes[tasks[i].peer];
    held |= router_->To(process)->Cancel(process, &transfer, op->status, force) == CancelResult::kPinned;
  }
  if (force && op->plan->by_library && library_path_->IsRunning(*op)) {
    const Status why(Code::kUnavailable,
                     *op->text + " has failed while MPI ran it, and MPI cannot cancel a collective: this process "
                                 "stops all communication. Restart the program");
    router_->remote()->Quiesce(why);
    library_path_->Quiesce(why);
  }
  --op->in_flight;
  CheckOver(op);
  return held;
}

void Executor::CheckOver(Operation* op) {
  if (op->over()) return;
  if (op->in_flight > 0 || (!op->failed() && op->open_tasks > 0)) return;
  if (!op->failed() && !op->filled && !op->plan->unwritten.empty()) {
    int64_t bytes = 0;
    for (const Part& part : op->plan->unwritten) bytes += part.bytes;
    if (bytes > kLightBytes) {
      ++op->in_flight;
      return Queue({op, kFill}, bytes);
    }
    FillUnwritten(*op);
  }
  op->phase = Operation::Phase::kOver;
  if (op->failed()) std::erase(failed_, op);
  memory_.Clear(op);
  listener_->OnOver(op);
}

bool Executor::StartReady() {
  bool any = false;
  while (!failed_.empty()) {   // not in Fail: Transport::Cancel must not be called from a callback
    Operation* const op = failed_.back();
    failed_.pop_back();
    CancelTransfers(op, /*force=*/false);
    any = true;
  }
  while (!ready_.empty()) {
    const Item item = ready_.front();
    ready_.pop_front();
    StartTask(item.op, item.task);
    any = true;
  }
  return any;
}

bool Executor::Run(std::unique_lock<std::mutex>& lock) {
  const bool any = StartReady();
  if (heavy_.empty()) return any;
  const Item item = std::move(heavy_.front());
  heavy_.pop_front();
  RunLong(item, lock);
  return true;
}

void Executor::RunComputation(std::unique_lock<std::mutex>& lock) {
  std::deque<Item>& queue = large_.empty() ? heavy_ : large_;
  const Item item = std::move(queue.front());
  queue.pop_front();
  RunLong(item, lock);
  StartReady();
}

void Executor::Fill(Operation* op, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  FillUnwritten(*op);
  lock.lock();
  --op->in_flight;
  op->filled = true;
  CheckOver(op);
}

void Executor::CopyThenStart(Operation* op, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  CopyOperands(*op);
  lock.lock();
  --op->in_flight;
  if (op->failed()) return CheckOver(op);
  StartTasks(op);
}

void Executor::SendGathered(Operation* op, TaskId task, std::unique_lock<std::mutex>& lock) {
  const PlannedTask& t = op->plan->tasks[task];
  TaskStarted(op, task);
  Status status = memory_.Prepare(op, task, 0);
  if (!status.ok()) return Fail(op, std::move(status));
  const std::vector<Piece> pieces = PiecesOf(*op, t.sources[0]);
  if (pieces.size() == 1) return StartSend(op, task);
  const int64_t bytes = TotalBytes(pieces);
  BufferPool::Buffer staging = memory_.TakeStaging(bytes);
  if (staging == nullptr) {
    return Fail(op, {Code::kUnavailable,
                     "no memory to gather a message of " + std::to_string(bytes) + " bytes"});
  }
  ++op->in_flight;
  lock.unlock();
  Gather(pieces, staging.get());
  lock.lock();
  --op->in_flight;
  if (op->failed()) {
    memory_.GiveStaging(std::move(staging), bytes);
    return CheckOver(op);
  }
  op->transfers[task].staging = std::move(staging);
  op->transfers[task].staging_bytes = bytes;
  StartSend(op, task);
}

void Executor::CopyInPlace(const Item& item, std::unique_lock<std::mutex>& lock) {
  Operation* const op = item.op;
  const PlannedTask& task = op->plan->tasks[item.task];
  const std::vector<Piece> into =
      task.dst_code >= 0
          ? std::vector<Piece>{{op->code[task.dst_code].buffer.get(), op->code[task.dst_code].used_bytes}}
          : PiecesOf(*op, task.dst);
  lock.unlock();
  const bool read = item.read(into, op->plan->streams && task.dst_code < 0);
  lock.lock();
  // If the operation has failed meanwhile, the payload is not wanted.
  if (!read && !op->failed()) return Pull(op, item.task, item.announced, into);
  router_->Discard(item.announced);
  TransferDone(op, item.task, Status::Ok());
}

void Executor::RunLong(const Item& item, std::unique_lock<std::mutex>& lock) {
  Operation* const op = item.op;
  if (item.task == kFill) return Fill(op, lock);
  if (item.task == kCopyOperands) return CopyThenStart(op, lock);
  if (item.read) return CopyInPlace(item, lock);
  if (!memory_.Admit(op, item.task, 0)) return;
  const PlannedTask& task = op->plan->tasks[item.task];
  if (task.kind == TaskKind::kSend) return SendGathered(op, item.task, lock);
  TaskStarted(op, item.task);
  Status status = memory_.Prepare(op, item.task, 0);
  ++op->in_flight;
  if (status.ok()) {
    lock.unlock();
    status = Compute(*op, task);
    lock.lock();
    if (task.kind == TaskKind::kEncode) memory_.Trim(op, &op->code[task.dst_code]);
  }
  TransferDone(op, item.task, std::move(status));
}

}  // namespace jaxccomp
