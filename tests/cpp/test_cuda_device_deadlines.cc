// Deadlines while a call of CUDA does not return, and so nobody gets the engine's lock: callers are let go
// where nothing writes to their memory, and otherwise the process ends with the reason.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>

#include "check.h"
#include "limited_team.h"

namespace jaxccomp {
namespace {

using namespace testing;
using Behind = LimitedTeam::Behind;
using std::chrono::milliseconds;

constexpr int64_t kRoom = 10 * LimitedTeam::kKernelsBehind;
constexpr double kTimeout = 2;
constexpr milliseconds kLongest(60000);
constexpr const char* kEnds = "JAXCCOMP_TEST_ENDS";

bool Has(const std::string& text, const char* part) {
  return CHECK(text.find(part) != std::string::npos) || CHECK_EQ(text, part);
}

// The thread that waits for an operation hears of the deadline while another thread has CUDA's lock.
TEST(cuda_device_deadline_of_a_thread) {
  LimitedTeam team({.launches = kRoom, .queues = 32},
                   {.wait = "host",
                    .early = Behind::kNothing,
                    .timeouts = {kTimeout, 60},
                    .root_comes = false,
                    .busy = true});
  while (!team.IsEntered(0)) std::this_thread::sleep_for(milliseconds(1));
  {
    const std::unique_lock<std::mutex> held = team.contexts[0]->Lock();
    while (team.callers_back == 0) std::this_thread::sleep_for(milliseconds(1));
  }
  team.GoOn();
  CHECK(team.Ends(kLongest));
  CHECK_EQ(team.returned[0].code(), Code::kDeadlineExceeded);
  Has(team.returned[0].message(), "CUDA or MPI that the engine has made has not returned for 2 s");
  // The engine goes on, with a communicator that cannot be used any more.
  Has(team.Run(0).message(), "has not returned for 2 s");
}

// The root's stream goes on at the deadline, and with it the call of CUDA that waited for it.
TEST(cuda_device_deadline_of_a_stream) {
  LimitedTeam team({.launches = kRoom, .queues = 32, .allocations_wait = true},
                   {.wait = "stream", .timeouts = {60, kTimeout}});
  CHECK(team.Ends(kLongest));
  CHECK_OK(team.returned[1]);
  Has(team.Run(1).message(), "has not returned for 2 s");
}

// The decoding of a broadcast that has come is being launched, and would write when it is: nobody can go on.
TEST(cuda_device_deadline_that_ends_the_process) {
  if (std::getenv(kEnds) != nullptr) {
    LimitedTeam team({.launches = 1000, .queues = 32},
                     {.wait = "stream", .late = Behind::kNothing, .timeouts = {kTimeout, 60}});
    std::this_thread::sleep_for(kLongest);
    return;
  }
  setenv(kEnds, "1", 1);
  int ends[2];
  CHECK_EQ(pipe(ends), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  std::string program = "/proc/self/exe", filter = "cuda_device_deadline_that_ends_the_process";
  char* const arguments[] = {program.data(), filter.data(), nullptr};
  pid_t child = 0;
  CHECK_EQ(posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  unsetenv(kEnds);
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    said.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  Has(said, "rank 0 of the world ends: a call of CUDA or MPI that the engine has made");
  Has(said, "has not returned for 4 s");
  Has(said, "1 operations could not be ended, as a device may still write to memory of their callers");
}

}  // namespace
}  // namespace jaxccomp
