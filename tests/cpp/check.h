// A small test harness: TEST registers a test, CHECK counts. A failed check prints file, line and
// values, and the test goes on. Each check is an expression with its outcome, so that a test can
// return: `if (!CHECK_OK(result)) return;`. Checks may run on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/status.h"

namespace jaxccomp::testing {

struct TestCase {
  const char* name;
  void (*run)();
};

inline std::vector<TestCase>& Tests() {
  static std::vector<TestCase> tests;
  return tests;
}

inline std::atomic<int64_t>& FailedChecks() {
  static std::atomic<int64_t> count{0};
  return count;
}

struct Registration {
  Registration(const char* name, void (*run)()) { Tests().push_back({name, run}); }
};

template <typename T>
std::string Show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_enum_v<T>) {
    out << "enum " << +static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (std::is_integral_v<T>) {
    out << +value;
  } else if constexpr (std::is_floating_point_v<T>) {
    out.precision(17);
    out << value;
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out << '"' << std::string_view(value) << '"';
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else {
    out << "<value of " << sizeof(T) << " bytes>";
  }
  return out.str();
}

template <typename T>
inline constexpr bool kPlainInteger = std::is_integral_v<T> && !std::is_same_v<T, bool> &&
                                      !std::is_same_v<T, char> && !std::is_same_v<T, wchar_t>;

// Equality that also compares signed with unsigned integers correctly.
template <typename A, typename B>
bool Equal(const A& a, const B& b) {
  if constexpr (kPlainInteger<A> && kPlainInteger<B>) {
    return std::cmp_equal(a, b);
  } else {
    return a == b;
  }
}

inline bool Report(bool ok, const char* file, int line, const std::string& what) {
  if (ok) return true;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  FailedChecks().fetch_add(1);
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  return false;
}

inline bool Check(bool ok, const char* file, int line, const char* expression) {
  return ok || Report(false, file, line, std::string("CHECK(") + expression + ") failed");
}

template <typename A, typename B>
bool CheckEq(const A& a, const B& b, const char* file, int line, const char* a_text,
             const char* b_text) {
  if (Equal(a, b)) return true;
  return Report(false, file, line,
                std::string("CHECK_EQ(") + a_text + ", " + b_text + ") failed: " + Show(a) +
                    " is not " + Show(b));
}

inline const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}

template <typename S>
bool CheckOk(const S& value, const char* file, int line, const char* expression) {
  if (value.ok()) return true;
  const Status& status = StatusOf(value);
  return Report(false, file, line,
                std::string("CHECK_OK(") + expression + ") failed: code " +
                    std::to_string(static_cast<int>(status.code())) + ", " + status.message());
}

}  // namespace jaxccomp::testing

#define CHECK(...) \
  ::jaxccomp::testing::Check(static_cast<bool>(__VA_ARGS__), __FILE__, __LINE__, #__VA_ARGS__)
#define CHECK_EQ(a, b) ::jaxccomp::testing::CheckEq((a), (b), __FILE__, __LINE__, #a, #b)
#define CHECK_OK(...) \
  ::jaxccomp::testing::CheckOk((__VA_ARGS__), __FILE__, __LINE__, #__VA_ARGS__)

#define TEST(name)                                                                     \
  static void Test_##name();                                                           \
  static const ::jaxccomp::testing::Registration registration_##name(#name, Test_##name); \
  static void Test_##name()
