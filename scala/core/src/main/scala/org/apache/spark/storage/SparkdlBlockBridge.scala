package org.apache.spark.storage

import java.nio.ByteBuffer
import java.util.concurrent.CompletableFuture
import java.util.concurrent.locks.LockSupport

import scala.reflect.ClassTag

import io.netty.channel.FileRegion

import org.apache.spark.{SecurityManager, SparkConf, SparkEnv}
import org.apache.spark.network.buffer.{ManagedBuffer, NioManagedBuffer}
import org.apache.spark.network.shuffle.{
  BlockFetchingListener,
  DownloadFile,
  DownloadFileManager,
  DownloadFileWritableChannel
}
import org.apache.spark.network.util.TransportConf
import org.apache.spark.rpc.{RpcAddress, RpcEndpointRef, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.util.io.ChunkedByteBuffer

/*
 * The only file that touches names which are internal to Spark. Everything here is mechanism; what is published, fetched and
 * retired when is decided in sparkdl.comm.ps.
 */

/** Where a block manager serves its blocks. */
final case class BlockServer(host: String, port: Int, executorId: String)

/** Where the bytes of a block go as they arrive. A failed transfer begins again with [[restart]]. */
trait BlockSink {
  def bytes: Long
  def restart(): Unit

  /** Takes all that remains in `from`. */
  def write(from: ByteBuffer): Unit
}

/**
 * Blocks of one job. They are broadcast blocks by name, the one kind whose id is free text that every Spark version parses,
 * with job ids far above any that Spark gives.
 */
final class SparkdlBlockBridge {
  import SparkdlBlockBridge._

  private val env = SparkEnv.get
  private val blocks = env.blockManager

  def here: BlockServer = {
    val id = blocks.blockManagerId
    BlockServer(id.host, id.port, id.executorId)
  }

  /** The host name or address under which this JVM is reached. On a local-mode driver the block manager is not up yet. */
  def host: String = Option(env.rpcEnv.address).fold(here.host)(_.host)

  def firstLocalDirectory: java.io.File = blocks.diskBlockManager.localDirs.head

  /**
   * Publishes `chunks` as they lie, without copying them. Under memory pressure Spark may move the block to disk (it is never
   * dropped), which the caller's memory survives.
   */
  def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit = {
    val id = BroadcastBlockId(job, name)
    val stored = blocks.putBytes(id, new BorrowedBytes(chunks), StorageLevel.MEMORY_AND_DISK_SER, tellMaster = false)(
      ClassTag.Byte
    )
    if (!stored) throw new IllegalStateException(s"Spark's BlockManager took block $id neither in memory nor on disk")
  }

  /** Removes the block once no reader is left. False if readers were still there at `deadlineNanos` (System.nanoTime). */
  def retire(job: Long, name: String, deadlineNanos: Long): Boolean = {
    val id = BroadcastBlockId(job, name)
    val locks = blocks.blockInfoManager
    var drained = false
    while (!drained && locks.get(id).isDefined && System.nanoTime < deadlineNanos)
      if (locks.lockForWriting(id, blocking = false).isDefined) {
        locks.unlock(id)
        drained = true
      } else LockSupport.parkNanos(50000)
    if (drained) blocks.removeBlock(id, tellMaster = false)
    drained || locks.get(id).isEmpty
  }

  /** Bytes of the block that are in memory and on disk; None if it is not here. For tests and metrics. */
  def status(job: Long, name: String): Option[(Long, Long)] =
    blocks.getStatus(BroadcastBlockId(job, name)).map(status => (status.memSize, status.diskSize))

  /**
   * Fetches a block from the server that has it, asking nobody where it is. The bytes go from the network buffers straight
   * to `sink`, piece by piece as they arrive, instead of being collected into a frame first.
   */
  def fetch(from: BlockServer, job: Long, name: String, sink: BlockSink): CompletableFuture[Void] = {
    val id = BroadcastBlockId(job, name)
    val done = new CompletableFuture[Void]
    val target = new SinkFile(sink)
    if (from.executorId == here.executorId) fetchHere(id, target, done)
    else {
      val listener = new BlockFetchingListener {
        override def onBlockFetchSuccess(block: String, data: ManagedBuffer): Unit = target.finish(block, done)
        override def onBlockFetchFailure(block: String, cause: Throwable): Unit = done.completeExceptionally(cause)
      }
      blocks.blockTransferService.fetchBlocks(
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
    blocks.getLocalBytes(id) match {
      case None => done.completeExceptionally(new java.io.IOException(s"block $id is not here"))
      case Some(data) =>
        try {
          val channel = target.openForWriting()
          val region = data.toNetty().asInstanceOf[FileRegion]
          while (region.transferred < region.count) region.transferTo(channel, region.transferred)
          target.finish(id.name, done)
        } catch { case e: java.io.IOException => done.completeExceptionally(e) }
        finally blocks.releaseLockAndDispose(id, data)
    }

  /**
   * Opens this executor's own way to be called (the executor's RpcEnv is client-only). It has Spark's authentication and
   * encryption, as conf sets them.
   */
  def openControl(
      conf: SparkConf,
      firstPort: Int,
      portCount: Int,
      receiver: ControlReceiver
  ): ControlPlane = {
    val portConf = conf.clone.set("spark.port.maxRetries", (portCount - 1).max(0).toString)
    if (firstPort == 0) portConf.set("spark.port.maxRetries", "16")
    val rpc = RpcEnv.create(
      ControlName,
      host,
      host,
      firstPort,
      portConf,
      env.securityManager: SecurityManager,
      numUsableCores = 1,
      clientMode = false
    )
    new ControlPlane(rpc, receiver)
  }
}

object SparkdlBlockBridge {
  private[storage] val ControlName = "sparkdl-comm"

  /** Memory that belongs to somebody else: Spark must not unmap it when it drops the block. */
  private final class BorrowedBytes(chunks: Array[ByteBuffer]) extends ChunkedByteBuffer(chunks) {
    override def dispose(): Unit = ()
  }

  /** A "download file" that is a [[BlockSink]]: makes Spark stream the block instead of buffering it. */
  private final class SinkFile(sink: BlockSink) extends DownloadFileManager with DownloadFile {
    @volatile private var received = 0L

    def finish(block: String, done: CompletableFuture[Void]): Unit =
      if (received == sink.bytes) done.complete(null)
      else
        done.completeExceptionally(new java.io.IOException(s"block $block has $received bytes, expected ${sink.bytes}"))

    override def createTempFile(conf: TransportConf): DownloadFile = this
    override def registerTempFileToClean(file: DownloadFile): Boolean = true
    override def delete(): Boolean = true
    override def path(): String = "memory"

    override def openForWriting(): DownloadFileWritableChannel = {
      received = 0
      sink.restart()
      new DownloadFileWritableChannel {
        override def write(from: ByteBuffer): Int = {
          val count = from.remaining
          if (received + count > sink.bytes)
            throw new java.io.IOException(s"block is longer than the ${sink.bytes} bytes expected")
          sink.write(from)
          received += count
          count
        }
        override def closeAndRead(): ManagedBuffer = new NioManagedBuffer(ByteBuffer.allocate(0))
        override def isOpen: Boolean = true
        override def close(): Unit = ()
      }
    }
  }
}

/** What the control plane delivers to. Calls come one at a time. */
trait ControlReceiver {
  def received(message: Any): Unit
  def disconnected(host: String, port: Int): Unit
}

/** One-way messages between executors. */
final class ControlPlane(rpc: RpcEnv, receiver: ControlReceiver) {
  import SparkdlBlockBridge.ControlName

  rpc.setupEndpoint(
    ControlName,
    new ThreadSafeRpcEndpoint {
      override val rpcEnv: RpcEnv = rpc
      override def receive: PartialFunction[Any, Unit] = { case message => receiver.received(message) }
      override def onDisconnected(address: RpcAddress): Unit = receiver.disconnected(address.host, address.port)
    }
  )

  def port: Int = rpc.address.port

  /** Connects to another executor's control plane; fails if it is not there. */
  def connect(host: String, port: Int): ControlPeer =
    new ControlPeer(rpc.setupEndpointRef(RpcAddress(host, port), ControlName))

  def close(): Unit = {
    rpc.shutdown()
    rpc.awaitTermination()
  }
}

final class ControlPeer(ref: RpcEndpointRef) {
  def send(message: Any): Unit = ref.send(message)
}
