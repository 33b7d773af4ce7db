#pragma once

#include <memory>
#include <thread>

// Debian's libgloo-dev (0.0~git20220518) leaves this header out, which others of its headers include. Here are the
// three classes that it declares, as the library was compiled with them: each is a shared or weak pointer and nothing
// else. It is looked for behind all others (cmake/Gloo.cmake): a package that has the header has its own used.
//
// They keep an object that somebody else destroys alive for the moment in which another thread uses it: the owner's
// destructor waits for those moments to end, and whoever comes later finds nothing.
namespace gloo {

template <typename T>
class WeakNonOwningPtr;
template <typename T>
class ShareableNonOwningPtr;

// A moment of use, or null.
template <typename T>
class NonOwningPtr final {
 public:
  NonOwningPtr() {}
  explicit NonOwningPtr(const WeakNonOwningPtr<T>& weak) : ptr_(weak.ptr_.lock()) {}
  T* operator->() const noexcept { return ptr_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(ptr_); }

 private:
  std::shared_ptr<T> ptr_;
};

// What others keep of the object.
template <typename T>
class WeakNonOwningPtr final {
 public:
  WeakNonOwningPtr() {}
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& object) : ptr_(object.ptr_) {}
  // Whether it is of any object, be that alive or not.
  explicit operator bool() const noexcept {
    const std::weak_ptr<T> none;
    return ptr_.owner_before(none) || none.owner_before(ptr_);
  }

 protected:
  std::weak_ptr<T> ptr_;
  friend class NonOwningPtr<T>;
};

// What the object has of itself.
template <typename T>
class ShareableNonOwningPtr final {
 public:
  explicit ShareableNonOwningPtr(T* object) : ptr_(object, [](void*) {}) {}
  ShareableNonOwningPtr(const ShareableNonOwningPtr&) = delete;
  ShareableNonOwningPtr& operator=(const ShareableNonOwningPtr&) = delete;
  ~ShareableNonOwningPtr() {
    const std::weak_ptr<T> uses(ptr_);
    ptr_.reset();
    while (!uses.expired()) std::this_thread::yield();
  }

 protected:
  std::shared_ptr<T> ptr_;
  friend class WeakNonOwningPtr<T>;
};

}  // namespace gloo
