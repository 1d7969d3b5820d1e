package org.apache.spark.storage

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.WritableByteChannel
import java.util.concurrent.locks.LockSupport

import scala.reflect.ClassTag

import io.netty.channel.FileRegion
import org.apache.logging.log4j.{Level, LogManager}
import org.apache.logging.log4j.core.{Filter, LogEvent, LoggerContext}
import org.apache.logging.log4j.core.filter.AbstractFilter

import org.apache.spark.SparkEnv
import org.apache.spark.storage.memory.MemoryStore
import org.apache.spark.util.io.ChunkedByteBuffer

import sparkdl.comm.transport.Blocks

/**
 * Blocks in the BlockManager of this JVM's executor. They are broadcast blocks by name, the one kind
 * whose id is free text that every Spark version parses, with job ids far above any that Spark gives. Everything here is
 * mechanism: sparkdl.comm.ps decides what is published, fetched and retired when.
 */
private[spark] final class SparkdlBlocks(env: SparkEnv) extends Blocks {
  import SparkdlBlocks._

  private val manager = env.blockManager

  leaveOwnBlocksOut

  /** A fetch is a round trip more than a message, which is copied twice on its way and comes whether or not there is room. */
  override def inlineThreshold: Long = 64 << 10

  override def executorId: String = env.executorId

  override def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit = {
    val id = BroadcastBlockId(job, name)
    val block = new BorrowedBytes(chunks)
    val stored = manager.putBytes(id, block, level(block.size), tellMaster = false)(ClassTag.Byte)
    if (!stored) throw new IllegalStateException(s"Spark's BlockManager took block $id neither in memory nor on disk")
  }

  /**
   * The memory is mapped and no heap, so it counts as off-heap storage where Spark's conf has any. Otherwise it takes free
   * storage memory, and where there is none it goes to disk: partitions that a user has cached are not evicted for it.
   */
  private def level(bytes: Long): StorageLevel = {
    val memory = env.memoryManager
    if (bytes <= memory.maxOffHeapStorageMemory - memory.offHeapStorageMemoryUsed) StorageLevel.OFF_HEAP
    else if (bytes <= memory.maxOnHeapStorageMemory - memory.onHeapStorageMemoryUsed) StorageLevel.MEMORY_AND_DISK_SER
    else StorageLevel.DISK_ONLY
  }

  override def retire(job: Long, name: String, over: () => Boolean): Boolean = {
    val id = BroadcastBlockId(job, name)
    val locks = manager.blockInfoManager
    def attempt(): Boolean =
      if (locks.lockForWriting(id, blocking = false).isDefined) {
        // What BlockManager.removeBlock does, but under this very lock: no reader can come in between.
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
    // A thread that was interrupted would not be parked.
    while (!gone && !over() && !Thread.currentThread.isInterrupted) {
      LockSupport.parkNanos(50000)
      gone = attempt()
    }
    gone
  }

  override def status(job: Long, name: String): Option[(Long, Long)] =
    manager.getStatus(BroadcastBlockId(job, name)).map(status => (status.memSize, status.diskSize))

  override def read(job: Long, name: String)(take: ByteBuffer => Unit): Unit = {
    val id = BroadcastBlockId(job, name)
    val data = manager.getLocalBytes(id).getOrElse(throw new IOException(s"block $id is not here"))
    try {
      val region = data.toNetty().asInstanceOf[FileRegion]
      val pieces = new Pieces(take)
      try while (region.transferred < region.count) region.transferTo(pieces, region.transferred)
      finally region.release() // it has the file of a block on disk open
    } finally manager.releaseLockAndDispose(id, data)
  }
}

private object SparkdlBlocks {

  /**
   * Keep Spark's lines about this plugin's blocks out of the log: some per iteration are hundreds of megabytes an hour. Lines
   * about the user's blocks stay, at the level that the user has set. Once in a JVM, as logging outlives Spark's contexts.
   */
  private lazy val leaveOwnBlocksOut: Unit = LogManager.getContext(false) match {
    case context: LoggerContext => context.getConfiguration.getLoggerConfig(Store).addFilter(OwnBlocks)
    case _ => () // the user's own way of logging
  }

  private val Store = classOf[MemoryStore].getName

  private object OwnBlocks extends AbstractFilter {
    override def filter(event: LogEvent): Filter.Result = {
      def isOfOwn = event.getMessage.getFormattedMessage.contains("_sparkdl_")
      val isDenied = event.getLoggerName == Store && event.getLevel.isLessSpecificThan(Level.INFO) && isOfOwn
      if (isDenied) Filter.Result.DENY else Filter.Result.NEUTRAL
    }
  }

  /** Memory that belongs to somebody else: Spark must not unmap it when it drops the block. */
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
