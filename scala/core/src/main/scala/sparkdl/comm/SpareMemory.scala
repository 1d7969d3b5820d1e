// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import java.lang.management.ManagementFactory
import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._
import scala.util.Try

import sparkdl.comm.transport.ChunkPeer

/**
 * Bytes of memory that are free now. Ranks share them before they allocate their segments.
 *
 * @param host free bytes of the host, or of the cgroup that it is; Long.MaxValue if unknown
 * @param executor bytes that this executor's container may still take. YARN counts a page of a
 *    segment twice, for the JVM and for the worker, so this is half of what is left. Long.MaxValue
 *    without such a container
 */
private[comm] final case class SpareMemory(host: Long, executor: Long)

private[comm] object SpareMemory {

  /**
   * Measure what is free now.
   *
   * @param containerBytes limit of the executor's container, which is enforced by the memory of its
   *    processes
   */
  def now(containerBytes: Option[Long]): SpareMemory = SpareMemory(
    Seq(available(Path.of("/proc/meminfo")), ofCgroup(Path.of("/sys/fs/cgroup"))).flatten
      .fold(Long.MaxValue)(math.min),
    containerBytes.fold(Long.MaxValue)(limit => math.max(0, limit - committed) / 2)
  )

  /** Return why segments of so many bytes on each rank do not fit; None if they do. */
  def shortage(bytes: Long, ranks: Seq[(ChunkPeer, SpareMemory)]): Option[String] = {
    def short[K](groups: Map[K, Seq[(ChunkPeer, SpareMemory)]], of: SpareMemory => Long) =
      groups.values.map(group => (group.size, group.map(rank => of(rank._2)).min)).find {
        case (count, spare) => bytes > spare / count
      }
    short(ranks.groupBy(_._1.host), _.host).map { case (count, spare) =>
      s"$bytes bytes for each of $count ranks of a host, but only $spare bytes are free"
    }.orElse(short(ranks.groupBy(_._1), _.executor).map { case (count, spare) =>
      s"$bytes bytes for each of $count ranks of an executor, but its container has room for" +
        s" $spare (spark.executor.memoryOverhead)"
    })
  }

  /** Return MemAvailable; None if this is no file of /proc. */
  def available(meminfo: Path): Option[Long] =
    numbers(meminfo).get("MemAvailable:").map(_ * 1024)

  /** Return what the cgroup may still take, v2 or v1; None if it has no limit. */
  def ofCgroup(root: Path): Option[Long] =
    left(root, "memory.max", "memory.current", "inactive_file")
      .orElse(left(
        root.resolve("memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file"
      ))

  private def left(cgroup: Path, limit: String, usage: String, cache: String): Option[Long] =
    for (most <- number(cgroup.resolve(limit)); used <- number(cgroup.resolve(usage))) yield {
      val reclaimable = numbers(cgroup.resolve("memory.stat")).getOrElse(cache, 0L)
      math.max(0, most - (used - reclaimable) - growth)
    }

  /** Bytes by which the heap may still grow. */
  private def growth: Long = Runtime.getRuntime.maxMemory - Runtime.getRuntime.totalMemory

  /** Bytes that this JVM and the processes that it started take, with a heap that has grown. */
  private def committed: Long = {
    val outside = ManagementFactory.getMemoryMXBean.getNonHeapMemoryUsage.getCommitted
    val workers = ProcessHandle.current.descendants.iterator.asScala
      .flatMap(worker => numbers(Path.of(s"/proc/${worker.pid}/status")).get("VmRSS:"))
    Runtime.getRuntime.maxMemory + outside + workers.sum * 1024
  }

  /** Read the first number of each line, by the line's first word; empty if that is impossible. */
  private def numbers(file: Path): Map[String, Long] =
    Try(Files.readAllLines(file).asScala.map(_.trim.split("\\s+")).collect {
      case words if words.length > 1 => words(0) -> words(1).toLong
    }.toMap).getOrElse(Map.empty)

  private def number(file: Path): Option[Long] = Try(Files.readString(file).trim.toLong).toOption
}
