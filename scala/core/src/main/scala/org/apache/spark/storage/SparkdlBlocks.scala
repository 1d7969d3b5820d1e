// SPDX-License-Identifier: Apache-2.0

package org.apache.spark.storage

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.WritableByteChannel
import java.util.concurrent.locks.LockSupport

import scala.reflect.ClassTag

import io.netty.channel.FileRegion
import org.apache.logging.log4j.{Level, LogManager, Marker}
import org.apache.logging.log4j.core.{Filter, Logger, LoggerContext}
import org.apache.logging.log4j.core.filter.AbstractFilter

import org.apache.spark.SparkEnv
import org.apache.spark.storage.memory.MemoryStore
import org.apache.spark.util.io.ChunkedByteBuffer

import sparkdl.comm.transport.Blocks

/**
 * Blocks in the BlockManager of this JVM's executor. They are named as broadcast blocks. Among the
 * ids that every Spark version parses, only those contain free text. Their job ids are far above
 * any that Spark gives. This class is mechanism only: sparkdl.comm.ps decides which blocks are
 * published, fetched and retired, and when.
 */
private[spark] final class SparkdlBlocks(env: SparkEnv) extends Blocks {
  import SparkdlBlocks._

  private val manager = env.blockManager

  filterLog

  /**
   * Inline threshold, in bytes. A fetch takes one more round trip than a message. But a message is
   * copied twice on its way, and arrives whether or not there is room.
   */
  override def inlineThreshold: Long = 64 << 10

  override def executorId: String = env.executorId

  override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit = {
    val id = BroadcastBlockId(job, name)
    val block = new BorrowedBytes(chunks)
    val stored = OwnBlocks.quietly(
      manager.putBytes(id, block, level(block.size), tellMaster = false)(ClassTag.Byte)
    )
    if (!stored) throw new IllegalStateException(
      s"Spark's BlockManager took block $id neither in memory nor on disk"
    )
  }

  /**
   * Return the storage level of a block. Its memory is mapped, not heap, so it counts as off-heap
   * storage if Spark's conf has any. Otherwise it takes free storage memory. If there is none, it
   * goes to disk: partitions that a user has cached are not evicted.
   */
  private def level(bytes: Long): StorageLevel = {
    val memory = env.memoryManager
    if (bytes <= memory.maxOffHeapStorageMemory - memory.offHeapStorageMemoryUsed)
      StorageLevel.OFF_HEAP
    else if (bytes <= memory.maxOnHeapStorageMemory - memory.onHeapStorageMemoryUsed)
      StorageLevel.MEMORY_AND_DISK_SER
    else StorageLevel.DISK_ONLY
  }

  override def retire(job: Long, name: String, isOver: () => Boolean): Boolean = {
    val id = BroadcastBlockId(job, name)
    val locks = manager.blockInfoManager
    def attempt(): Boolean =
      if (locks.lockForWriting(id, blocking = false).isDefined) {
        // The same as BlockManager.removeBlock, but under this lock, so that no reader can come in
        // between.
        var removed = false
        try {
          manager.memoryStore.remove(id)
          manager.diskStore.remove(id)
          locks.removeBlock(id)
          removed = true
        } finally if (!removed) locks.unlock(id)
        true
      } else locks.get(id).isEmpty
    var gone = attempt()
    // LockSupport does not park an interrupted thread.
    while (!gone && !isOver() && !Thread.currentThread.isInterrupted) {
      LockSupport.parkNanos(50000)
      gone = attempt()
    }
    gone
  }

  override def status(job: Long, name: String): Option[(Long, Long)] =
    manager.getStatus(BroadcastBlockId(job, name)).map(status => (status.memSize, status.diskSize))

  override def read(job: Long, name: String)(take: ByteBuffer => Unit): Unit = {
    val id = BroadcastBlockId(job, name)
    val data = OwnBlocks.quietly(manager.getLocalBytes(id))
      .getOrElse(throw new IOException(s"block $id is not here"))
    try {
      val region = data.toNetty().asInstanceOf[FileRegion]
      val pieces = new Pieces(take)
      try while (region.transferred < region.count) region.transferTo(pieces, region.transferred)
      finally region.release() // it holds the open file of a block on disk
    } finally manager.releaseLockAndDispose(id, data)
  }
}

private[storage] object SparkdlBlocks {

  /** Beginning of the names of this plugin's blocks. */
  private val Prefix = "sparkdl_"

  /** Return true if a block of this name is this plugin's, not one of Spark's broadcasts. */
  def isOwn(name: String): Boolean = name.startsWith(Prefix)

  /**
   * Filter that keeps Spark's lines about this plugin's blocks out of the log: several lines per
   * iteration make hundreds of megabytes an hour. It denies a line before Spark formats its text,
   * which would take longer than storing the block. Lines about the user's blocks stay, at the
   * level that the user has set.
   */
  private object OwnBlocks extends AbstractFilter {
    private val isQuiet = ThreadLocal.withInitial[Boolean](() => false)

    /** Run `body`, which handles blocks of this plugin, without lines about them. */
    def quietly[T](body: => T): T = {
      isQuiet.set(true)
      try body
      finally isQuiet.remove()
    }

    override def filter(
        logger: Logger,
        level: Level,
        marker: Marker,
        message: String,
        parameters: AnyRef*
    ): Filter.Result = {
      val isDenied =
        level.isLessSpecificThan(Level.INFO) && logger.getName == Store && isQuiet.get
      if (isDenied) Filter.Result.DENY else Filter.Result.NEUTRAL
    }
  }

  private val Store = classOf[MemoryStore].getName

  /** Add [[OwnBlocks]] to Spark's logging, once in a JVM: logging outlives SparkContexts. */
  private lazy val filterLog: Unit =
    LogManager.getContext(classOf[MemoryStore].getClassLoader, false) match {
      case context: LoggerContext => context.getConfiguration.addFilter(OwnBlocks)
      case _ => () // another logging library
    }

  /** Memory that Spark does not own, and must not unmap when it drops the block. */
  private final class BorrowedBytes(chunks: Array[ByteBuffer]) extends ChunkedByteBuffer(chunks) {
    override def dispose(): Unit = ()
  }

  private final class Pieces(take: ByteBuffer => Unit) extends WritableByteChannel {
    override def write(from: ByteBuffer): Int = {
      val count = from.remaining
      take(from)
      count
    }
    override def isOpen: Boolean = true
    override def close(): Unit = ()
  }
}
