package org.apache.spark.storage

import java.io.IOException
import java.nio.ByteBuffer
import java.util.concurrent.CompletableFuture
import java.util.concurrent.locks.LockSupport

import scala.reflect.ClassTag
import scala.util.control.NonFatal

import io.netty.channel.FileRegion
import org.apache.logging.log4j.Level
import org.apache.logging.log4j.core.config.Configurator

import org.apache.spark.SparkEnv
import org.apache.spark.network.buffer.{ManagedBuffer, NioManagedBuffer}
import org.apache.spark.network.shuffle.{
  BlockFetchingListener,
  DownloadFile,
  DownloadFileManager,
  DownloadFileWritableChannel
}
import org.apache.spark.network.util.TransportConf
import org.apache.spark.storage.memory.MemoryStore
import org.apache.spark.util.io.ChunkedByteBuffer

import sparkdl.comm.transport.{BlockServer, BlockSink, Blocks}

/**
 * Blocks in the BlockManager of this JVM's executor, and in those of others. They are broadcast blocks by name, the one kind
 * whose id is free text that every Spark version parses, with job ids far above any that Spark gives. Everything here is
 * mechanism: sparkdl.comm.ps decides what is published, fetched and retired when.
 */
private[spark] final class SparkdlBlocks(env: SparkEnv) extends Blocks {
  import SparkdlBlocks._

  private val manager = env.blockManager

  // Spark logs each block that it stores; with some blocks per iteration that is hundreds of megabytes an hour.
  Configurator.setLevel(classOf[MemoryStore].getName, Level.WARN)

  /**
   * A fetch is two round trips and some thread hand-overs more. A message, however, is copied five times on its way, and an
   * executor takes one at a time.
   */
  override def inlineThreshold: Long = 64 << 10

  override def here: BlockServer = {
    val id = manager.blockManagerId
    BlockServer(id.host, id.port, id.executorId)
  }

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

  /** The bytes go from the network buffers straight to `sink`, instead of being collected into a frame first. */
  override def fetch(from: BlockServer, job: Long, name: String, sink: BlockSink): CompletableFuture[Void] = {
    val id = BroadcastBlockId(job, name)
    val done = new CompletableFuture[Void]
    val target = new SinkFile(sink)
    if (from.executorId == here.executorId) fetchHere(id, target, done)
    else {
      val listener = new BlockFetchingListener {
        override def onBlockFetchSuccess(block: String, data: ManagedBuffer): Unit = target.finish(block, done)
        override def onBlockFetchFailure(block: String, cause: Throwable): Unit = done.completeExceptionally(cause)
      }
      manager.blockTransferService.fetchBlocks(
        from.host,
        from.port,
        from.executorId,
        Array(id.name),
        listener,
        target
      )
    }
    done
  }

  private def fetchHere(id: BlockId, target: SinkFile, done: CompletableFuture[Void]): Unit =
    manager.getLocalBytes(id) match {
      case None => done.completeExceptionally(new IOException(s"block $id is not here"))
      case Some(data) =>
        try {
          val channel = target.openForWriting()
          val region = data.toNetty().asInstanceOf[FileRegion]
          try while (region.transferred < region.count) region.transferTo(channel, region.transferred)
          finally region.release() // it has the file of a block on disk open
          target.finish(id.name, done)
        } catch { case e: IOException => done.completeExceptionally(e) }
        finally manager.releaseLockAndDispose(id, data)
    }
}

private object SparkdlBlocks {

  /** Memory that belongs to somebody else: Spark must not unmap it when it drops the block. */
  private final class BorrowedBytes(chunks: Array[ByteBuffer]) extends ChunkedByteBuffer(chunks) {
    override def dispose(): Unit = ()
  }

  /** A "download file" that is a [[BlockSink]]: makes Spark stream the block instead of buffering it. */
  private final class SinkFile(sink: BlockSink) extends DownloadFileManager with DownloadFile {
    @volatile private var received = 0L
    @volatile private var broken: Option[Throwable] = None

    def finish(block: String, done: CompletableFuture[Void]): Unit =
      if (broken.isDefined) done.completeExceptionally(broken.get)
      else if (received <= sink.maxBytes && sink.expects(received)) done.complete(null)
      else done.completeExceptionally(new IOException(s"block $block has $received bytes, expected ${sink.maxBytes}"))

    override def createTempFile(conf: TransportConf): DownloadFile = this
    override def registerTempFileToClean(file: DownloadFile): Boolean = true
    override def delete(): Boolean = true
    override def path(): String = "memory"

    override def openForWriting(): DownloadFileWritableChannel = {
      received = 0
      broken = None
      sink.restart()
      new DownloadFileWritableChannel {
        // Never throws: other ranks and Spark's own shuffles share this connection, and an exception would close it.
        override def write(from: ByteBuffer): Int = {
          val count = from.remaining
          received += count
          if (broken.isEmpty && received <= sink.maxBytes)
            try sink.write(from)
            catch { case NonFatal(e) => broken = Some(e) }
          from.position(from.limit())
          count
        }
        override def closeAndRead(): ManagedBuffer = new NioManagedBuffer(ByteBuffer.allocate(0))
        override def isOpen: Boolean = true
        override def close(): Unit = ()
      }
    }
  }
}
