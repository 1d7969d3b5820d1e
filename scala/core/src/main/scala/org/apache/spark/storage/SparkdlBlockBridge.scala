package org.apache.spark.storage

import java.io.IOException
import java.nio.ByteBuffer
import java.util.concurrent.CompletableFuture
import java.util.concurrent.locks.LockSupport

import scala.reflect.ClassTag
import scala.util.control.NonFatal

import io.netty.channel.FileRegion

import org.apache.spark.{SecurityManager, SparkConf, SparkContext, SparkEnv}
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

  private def isDriver: Boolean = env.executorId == SparkContext.DRIVER_IDENTIFIER

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

  /**
   * Removes the block once no reader is left.
   *
   * @param over
   *   asked while readers are waited for; true ends the wait
   * @param deadlineNanos
   *   of System.nanoTime; at least one attempt is made whatever it is
   * @return
   *   false if readers were still there in the end
   */
  def retire(job: Long, name: String, deadlineNanos: Long, over: () => Boolean = () => false): Boolean = {
    val id = BroadcastBlockId(job, name)
    val locks = blocks.blockInfoManager
    def attempt(): Boolean =
      if (locks.lockForWriting(id, blocking = false).isDefined) {
        // What BlockManager.removeBlock does, but under this very lock: no reader can come in between.
        blocks.memoryStore.remove(id)
        blocks.diskStore.remove(id)
        locks.removeBlock(id)
        true
      } else locks.get(id).isEmpty
    var gone = attempt()
    while (!gone && !over() && System.nanoTime < deadlineNanos) {
      LockSupport.parkNanos(50000)
      gone = attempt()
    }
    gone
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
      case None => done.completeExceptionally(new IOException(s"block $id is not here"))
      case Some(data) =>
        try {
          val channel = target.openForWriting()
          val region = data.toNetty().asInstanceOf[FileRegion]
          while (region.transferred < region.count) region.transferTo(channel, region.transferred)
          target.finish(id.name, done)
        } catch { case e: IOException => done.completeExceptionally(e) }
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
    val rpcConf = conf.clone.set("spark.port.maxRetries", (portCount - 1).toString)
    // A peer that is gone must not hold a gang up for Spark's two minutes.
    Seq("spark.rpc.lookupTimeout", "spark.rpc.askTimeout", "spark.rpc.io.connectionCreationTimeout")
      .foreach(rpcConf.set(_, s"${ConnectSeconds}s"))
    val bindAddress = if (isDriver) conf.get("spark.driver.bindAddress", host) else host
    val rpc = RpcEnv.create(
      ControlName,
      bindAddress,
      host,
      firstPort,
      rpcConf,
      env.securityManager: SecurityManager,
      numUsableCores = 1,
      clientMode = false
    )
    new ControlPlane(rpc, receiver)
  }
}

object SparkdlBlockBridge {
  private[storage] val ControlName = "sparkdl-comm"
  private val ConnectSeconds = 10

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
      else if (received == sink.bytes) done.complete(null)
      else done.completeExceptionally(new IOException(s"block $block has $received bytes, expected ${sink.bytes}"))

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
          if (broken.isEmpty && received <= sink.bytes)
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

  def close(): Unit =
    rpc.shutdown()
}

final class ControlPeer(ref: RpcEndpointRef) {
  def send(message: Any): Unit = ref.send(message)
}
