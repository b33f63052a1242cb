// LocalTransport, pieces, and the errors of MpiLibrary and MpiTransport if no MPI is loaded.
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "transport/credit.h"
#include "transport/local/local_transport.h"
#include "transport/mpi/mpi_transport.h"
#include "transport/pieces.h"

namespace jaxccomp {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Pattern(int64_t bytes, int seed) {
  Bytes out(static_cast<size_t>(bytes));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
  return out;
}

struct Waiter final : Completion {
  void Done(Status s) override {
    ++calls;
    status = std::move(s);
  }
  int calls = 0;
  Status status;
};

struct Inbox final : Receiver {
  struct Arrival {
    Header header;
    Bytes payload;
    Announced announced;
  };
  void OnMessage(const Header& header, std::span<const std::byte> payload,
                 Announced announced) override {
    arrivals.push_back({header, {payload.begin(), payload.end()}, announced});
    if (on_message) on_message(arrivals.size());
  }
  void OnPeerFailed(int, const Status&) override { CHECK(!"no peer is lost here"); }

  std::vector<Arrival> arrivals;
  std::function<void(size_t)> on_message;
};

Header HeaderFor(int64_t payload_bytes, uint32_t tag = 0) {
  Header header;
  header.payload_bytes = payload_bytes;
  header.tag = tag;
  return header;
}

std::vector<Piece> Cut(Bytes* data, const std::vector<int64_t>& sizes) {
  std::vector<Piece> pieces;
  int64_t begin = 0;
  for (int64_t bytes : sizes) {
    pieces.push_back({data->data() + begin, bytes});
    begin += bytes;
  }
  CHECK_EQ(begin, data->size());
  return pieces;
}

TEST(pieces_are_copied_between_different_divisions) {
  Bytes from = Pattern(1000, 1);
  for (const std::vector<int64_t>& cut :
       {std::vector<int64_t>{1000}, {1, 999}, {0, 500, 0, 500, 0}, {300, 300, 300, 100}}) {
    for (const std::vector<int64_t>& other :
         {std::vector<int64_t>{1000}, {999, 1}, {250, 0, 250, 500}, {0, 1000}}) {
      Bytes to(1000), gathered(1000);
      CopyPieces(Cut(&from, cut), Cut(&to, other));
      CHECK(to == from);
      Gather(Cut(&from, cut), gathered.data());
      CHECK(gathered == from);
      Bytes scattered(1000);
      Scatter(gathered.data(), Cut(&scattered, other));
      CHECK(scattered == from);
    }
  }
  CopyPieces({}, {});
  const Piece nothing{nullptr, 0};
  CopyPieces({&nothing, 1}, {&nothing, 1});
  CHECK_EQ(TotalBytes({&nothing, 1}), 0);
}

TEST(local_transport_sends_small_payloads_with_the_message) {
  Inbox inbox;
  LocalTransport local(3, &inbox);
  CHECK(!local.NeedsPolling());
  CHECK(!local.Poll());
  uint32_t tag = 0;
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1024}, LocalTransport::kCopiedBytes}) {
    Bytes data = Pattern(bytes, 7);
    Waiter sent;
    local.Send(3, HeaderFor(bytes, tag), Cut(&data, {bytes / 3, 0, bytes - bytes / 3}), &sent);
    // The send completes at once; later changes of the sender's buffer have no effect.
    CHECK_EQ(sent.calls, 1);
    CHECK_OK(sent.status);
    std::fill(data.begin(), data.end(), std::byte{0xee});
    CHECK_EQ(inbox.arrivals.size(), tag);  // never delivered inside Send
    CHECK(local.NeedsPolling());
    CHECK(local.Poll());
    ++tag;
    if (!CHECK_EQ(inbox.arrivals.size(), tag)) return;
    const Inbox::Arrival& arrival = inbox.arrivals.back();
    CHECK_EQ(arrival.header.tag, tag - 1);
    CHECK_EQ(arrival.header.source_process, 3);
    CHECK_EQ(arrival.announced.process, -1);
    CHECK(arrival.payload == Pattern(bytes, 7));
  }
  CHECK(!local.NeedsPolling());
}

TEST(local_transport_reads_large_payloads_in_place) {
  Inbox inbox;
  LocalTransport local(0, &inbox);
  const int64_t bytes = LocalTransport::kCopiedBytes + 1;
  Bytes data = Pattern(bytes, 2);
  Waiter sent;
  local.Send(0, HeaderFor(bytes), Cut(&data, {100, bytes - 100}), &sent);
  local.Poll();
  if (!CHECK_EQ(inbox.arrivals.size(), 1)) return;
  const Announced announced = inbox.arrivals[0].announced;
  CHECK_EQ(announced.process, 0);
  CHECK(inbox.arrivals[0].payload.empty());
  const Transport::Reader read = local.StartRead(announced);
  if (!CHECK(read != nullptr)) return;
  // The payload stays in place although other messages are sent and its sender cancels it.
  std::vector<Waiter> others(100);
  for (Waiter& w : others) local.Send(0, HeaderFor(bytes), Cut(&data, {bytes}), &w);
  CHECK(local.Cancel(0, &sent, {Code::kAborted, "cancelled"}, true) == CancelResult::kPending);
  Bytes into(static_cast<size_t>(bytes));
  CHECK(read(Cut(&into, {77, bytes - 77}), true));
  CHECK(into == data);
  CHECK_EQ(sent.calls, 0);
  local.Discard(announced);
  CHECK_EQ(sent.calls, 1);
  CHECK_OK(sent.status);
  local.Discard(announced);
  CHECK_EQ(sent.calls, 1);
  CHECK(!local.StartRead(announced));
  local.Poll();
  CHECK_EQ(inbox.arrivals.size(), 101);
  for (size_t i = 1; i < inbox.arrivals.size(); ++i) local.Discard(inbox.arrivals[i].announced);
  for (const Waiter& w : others) CHECK_EQ(w.calls, 1);
}

TEST(local_transport_pulls_large_payloads) {
  Inbox inbox;
  LocalTransport local(0, &inbox);
  const int64_t bytes = 1 << 20;
  Bytes data = Pattern(bytes, 3), into(data.size());
  Waiter sent, pulled, again;
  local.Send(0, HeaderFor(bytes), Cut(&data, {5, bytes - 5}), &sent);
  local.Poll();
  if (!CHECK_EQ(inbox.arrivals.size(), 1)) return;
  const Announced announced = inbox.arrivals[0].announced;
  local.Pull(announced, Cut(&into, {bytes - 7, 7}), &pulled);
  CHECK_EQ(sent.calls, 1);
  CHECK_EQ(pulled.calls, 1);
  CHECK_OK(pulled.status);
  CHECK(into == data);
  local.Pull(announced, Cut(&into, {bytes}), &again);
  CHECK(again.status.code() == Code::kAborted);

  Waiter sent_again, short_pull;
  local.Send(0, HeaderFor(bytes), Cut(&data, {bytes}), &sent_again);
  local.Poll();
  const Piece few{into.data(), 10};
  local.Pull(inbox.arrivals[1].announced, {&few, 1}, &short_pull);
  CHECK(short_pull.status.code() == Code::kInternal);
  CHECK_EQ(sent_again.calls, 1);
}

TEST(local_transport_delivers_sends_of_a_callback_at_the_next_poll) {
  Inbox inbox;
  LocalTransport local(0, &inbox);
  Waiter sent;
  inbox.on_message = [&](size_t count) {
    if (count < 5) local.Send(0, HeaderFor(0, static_cast<uint32_t>(count)), {}, &sent);
  };
  local.Send(0, HeaderFor(0), {}, &sent);
  for (size_t count = 1; count <= 5; ++count) {
    CHECK(local.Poll());
    CHECK_EQ(inbox.arrivals.size(), count);
  }
  CHECK(!local.Poll());
  for (uint32_t i = 0; i < 5; ++i) CHECK_EQ(inbox.arrivals[i].header.tag, i);
}

TEST(local_transport_refuses_misuse_and_fails_waiting_sends_when_closed) {
  Inbox inbox;
  auto local = std::make_unique<LocalTransport>(0, &inbox);
  Bytes data(1 << 20);
  Waiter elsewhere, wrong_size, waiting;
  local->Send(1, HeaderFor(0), {}, &elsewhere);
  CHECK(elsewhere.status.code() == Code::kInternal);
  local->Send(0, HeaderFor(3), {}, &wrong_size);
  CHECK(wrong_size.status.code() == Code::kInternal);
  CHECK(!local->Poll());
  local->Send(0, HeaderFor(1 << 20), Cut(&data, {1 << 20}), &waiting);
  CHECK_EQ(waiting.calls, 0);
  local.reset();
  CHECK_EQ(waiting.calls, 1);
  CHECK(waiting.status.code() == Code::kUnavailable);
}

TEST(credit_is_spent_received_and_returned) {
  Credit sender, receiver;
  sender.Grant({.bytes = 100, .messages = 4});
  receiver.Grant({.bytes = 100, .messages = 4});
  CHECK(sender.Covers(100));
  CHECK(!sender.Covers(101));
  for (int i = 0; i < 4; ++i) {
    CHECK(sender.Covers(10));
    sender.Spend(10);
  }
  CHECK(!sender.Covers(0));
  // No credit is due for a kept message.
  receiver.Take(10);
  CHECK(!receiver.IsDue());
  receiver.Keep(10);
  receiver.Take(10);
  CHECK(!receiver.IsDue());
  receiver.Take(10);
  CHECK(receiver.IsDue());
  const Credit::Amount half{.bytes = 20, .messages = 2};
  CHECK(receiver.TakeOwed() == half);
  CHECK(receiver.TakeOwed() == Credit::Amount{});
  CHECK(sender.Replenish(half));
  CHECK(sender.Covers(0));
  CHECK(!sender.Replenish({.bytes = 0, .messages = 3}));   // more than was spent
  CHECK(!sender.Replenish({.bytes = -1, .messages = 0}));
  // Between Keep and Take of a message, the credit due may be negative.
  receiver.Keep(10);
  CHECK(receiver.TakeOwed() == Credit::Amount{});
  receiver.Take(10);
  CHECK(receiver.TakeOwed() == Credit::Amount{});
  // Half of the bytes makes credit due.
  receiver.Take(50);
  CHECK(receiver.IsDue());
  // A Credit without a grant covers no message.
  Credit none;
  CHECK(!none.Covers(0));
  CHECK(!none.IsDue());
}

TEST(credit_per_process_shrinks_with_the_number_of_processes) {
  const Credit::Amount granted{.bytes = 1 << 20, .messages = 512};
  for (int processes : {1, 2, 64}) CHECK(Credit::Share(granted, processes) == granted);
  const Credit::Amount many = Credit::Share(granted, 1024);
  CHECK_EQ(many.bytes, 64 << 10);
  CHECK_EQ(many.messages, 32);
  CHECK_EQ(Credit::Share(granted, 1 << 20).messages, 1);
  CHECK_EQ(Credit::Share({.bytes = 0, .messages = 0}, 2).messages, 0);
}

TEST(mpi_absent_returns_an_error_with_the_remedy) {
  const Result<const MpiLibrary*> library = MpiLibrary::Load();
  CHECK(!library.ok());
  CHECK(library.status().code() == Code::kUnavailable);
  CHECK(library.status().message().find("import mpi4py.MPI first") != std::string::npos);
  Inbox inbox;
  const auto transport = MpiTransport::Create({}, &inbox);
  CHECK_EQ(transport.status().message(), library.status().message());
}

}  // namespace
}  // namespace jaxccomp
