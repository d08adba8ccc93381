# find_package(rallypoint CONFIG) gives
#
#   rallypoint::rallypoint   the shared library
#   rallypoint::static       the static one, if it is installed
#
# Paths follow from where this file is, so that the tree may be moved.

get_filename_component(_rallypoint_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
get_filename_component(_rallypoint_prefix "${_rallypoint_lib}" DIRECTORY)
find_path(_rallypoint_include rallypoint.h
          HINTS "${_rallypoint_prefix}/include" "${_rallypoint_prefix}/../include" NO_DEFAULT_PATH NO_CACHE REQUIRED)
set(THREADS_PREFER_PTHREAD_FLAG ON)
include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET rallypoint::rallypoint)
  add_library(rallypoint::rallypoint SHARED IMPORTED)
  set_target_properties(rallypoint::rallypoint PROPERTIES
    IMPORTED_LOCATION "${_rallypoint_lib}/librallypoint.so"
    IMPORTED_SONAME "librallypoint.so.@SOVERSION@"
    INTERFACE_INCLUDE_DIRECTORIES "${_rallypoint_include}")
endif()

if(NOT TARGET rallypoint::static AND EXISTS "${_rallypoint_lib}/librallypoint.a")
  add_library(rallypoint::static STATIC IMPORTED)
  set_target_properties(rallypoint::static PROPERTIES
    IMPORTED_LOCATION "${_rallypoint_lib}/librallypoint.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_rallypoint_include}"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()

unset(_rallypoint_lib)
unset(_rallypoint_prefix)
unset(_rallypoint_include)
