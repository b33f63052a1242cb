// Detection of dead processes, of forked children, and of interrupts.
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "common/forks.h"
#include "common/interrupts.h"
#include "engine/peers.h"

namespace jaxccomp {
namespace {

// A process that waits until it is killed.
pid_t Fork() {
  const pid_t pid = fork();
  if (pid == 0) {
    while (true) pause();
  }
  return pid;
}

// Kills a process. Without `ask` it stays a zombie: its parent does not read its status.
void End(pid_t pid, bool ask) {
  kill(pid, SIGKILL);
  siginfo_t info;
  CHECK_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | (ask ? 0 : WNOWAIT)), 0);
}

TEST(failure_detector_finds_dead_processes_of_this_host) {
  const pid_t pids[] = {Fork(), Fork(), Fork()};
  Peers peers;
  std::vector<SystemProcess> processes = {{getpid(), StartTimeOf(getpid())}, {}};
  for (const pid_t pid : pids) processes.push_back({pid, StartTimeOf(pid)});
  for (const SystemProcess& each : processes) CHECK((each.start_time != 0) == (each.pid != 0));
  // A later process with the pid of an earlier one.
  processes.push_back({pids[2], processes.back().start_time - 1});
  peers.SetProcesses(processes);
  CHECK(peers.FindDead() == std::vector<int>({5}));
  End(pids[0], true);
  End(pids[1], false);
  CHECK_EQ(StartTimeOf(pids[0]), 0);
  CHECK_EQ(StartTimeOf(pids[1]), 0);
  CHECK(peers.FindDead() == std::vector<int>({2, 3}));   // reported once each
  CHECK(peers.FindDead().empty());
  End(pids[1], true);
  End(pids[2], true);
  CHECK(peers.FindDead() == std::vector<int>({4}));
}

TEST(failure_detector_keeps_the_first_reason) {
  Peers peers;
  peers.SetProcesses({{}, {getpid(), 1}});   // an earlier process that had this pid
  const Status boom(Code::kUnavailable, "RuntimeError: boom");
  CHECK(peers.Find(1) == nullptr);
  CHECK(peers.MarkFailed(1, boom, false));
  CHECK(peers.FindDead() == std::vector<int>({1}));
  // Its death does not replace the first reason.
  CHECK(!peers.MarkFailed(1, {Code::kUnavailable, "it has died"}, true));
  if (!CHECK(peers.Find(1) != nullptr)) return;
  CHECK_EQ(peers.Find(1)->why.message(), boom.message());
  CHECK(peers.Find(1)->dead);
  CHECK_EQ(peers.failed().size(), 1);
}

TEST(forked_child_is_detected) {
  WatchForks();
  WatchForks();
  CHECK(!IsForkedChild());
  const pid_t pid = fork();
  if (pid == 0) _exit(IsForkedChild() ? 3 : 4);
  int status = 0;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 3);
  CHECK(!IsForkedChild());
}

int handled = 0;
int handled_later = 0;
void Handle(int) { ++handled; }
void HandleLater(int, siginfo_t*, void*) { ++handled_later; }

struct sigaction Install(const struct sigaction& action) {
  struct sigaction before = {};
  sigaction(SIGINT, &action, &before);
  return before;
}

TEST(interrupts_are_counted_and_reach_their_handlers) {
  struct sigaction ignored = {}, plain = {}, informed = {};
  ignored.sa_handler = SIG_IGN;
  plain.sa_handler = Handle;
  informed.sa_flags = SA_SIGINFO;
  informed.sa_sigaction = HandleLater;
  const struct sigaction before = Install(ignored);
  const uint64_t counted = InterruptCount();
  // An ignored signal stays ignored.
  WatchInterrupts();
  raise(SIGINT);
  CHECK_EQ(InterruptCount(), counted);
  Install(plain);
  WatchInterrupts();
  WatchInterrupts();
  raise(SIGINT);
  CHECK_EQ(InterruptCount(), counted + 1);
  CHECK_EQ(handled, 1);
  // A handler that the program installs later is also observed, as is the first one when reinstalled.
  Install(informed);
  WatchInterrupts();
  raise(SIGINT);
  CHECK_EQ(InterruptCount(), counted + 2);
  CHECK_EQ(handled, 1);
  CHECK_EQ(handled_later, 1);
  Install(plain);
  WatchInterrupts();
  raise(SIGINT);
  CHECK_EQ(InterruptCount(), counted + 3);
  CHECK_EQ(handled, 2);
  Install(before);
}

}  // namespace
}  // namespace jaxccomp
