package org.apache.spark.storage

import java.io.{ByteArrayInputStream, InputStream}
import java.nio.ByteBuffer
import java.util.concurrent.atomic.AtomicInteger

import io.netty.buffer.Unpooled

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.network.buffer.ManagedBuffer
import org.apache.spark.network.client.TransportClientBootstrap
import org.apache.spark.network.crypto.{AuthClientBootstrap, AuthServerBootstrap}
import org.apache.spark.network.netty.SparkTransportConf
import org.apache.spark.network.server.TransportServerBootstrap
import org.apache.spark.network.util.TransportConf
import org.apache.spark.util.Utils

import sparkdl.comm.transport.{Chunk, ChunkTransport}

/** What the network of chunks needs of Spark. Its blocks are those of this executor's BlockManager, locked while they are sent. */
private[spark] final class SparkdlChunks(env: SparkEnv, conf: SparkConf, override val bindAddress: String)
    extends ChunkTransport {
  import SparkdlChunks._

  private val manager = env.blockManager
  private val authenticates = env.securityManager.isAuthenticationEnabled()

  override val transportConf: TransportConf = {
    // A peer that is gone must not hold others up for Spark's two minutes.
    val ownConf = conf.clone
      .set(s"spark.$Module.io.connectionCreationTimeout", "10s")
      .set(s"spark.$Module.sasl.timeout", "10s")
      .set(s"spark.$Module.io.mode", "NIO") // whose reads go right into the target, see sparkdl.comm.chunks.DirectReads
    fromSpark(ownConf)
  }

  /** By its name at run time: Spark 3 has no TLS between executors, and Spark 4 a parameter more for it. */
  private def fromSpark(conf: SparkConf): TransportConf = {
    val withTls = SparkTransportConf.getClass.getMethods.find { method =>
      method.getName == "fromSparkConf" && method.getParameterCount == 5
    }
    withTls.fold(SparkTransportConf.fromSparkConf(conf, Module)) { fromSparkConf =>
      val tls = env.securityManager.getClass.getMethod("getRpcSSLOptions").invoke(env.securityManager)
      fromSparkConf.invoke(SparkTransportConf, conf, Module, Int.box(0), None, Some(tls)).asInstanceOf[TransportConf]
    }
  }

  override def serverBootstraps: Seq[TransportServerBootstrap] =
    if (authenticates) Seq(new AuthServerBootstrap(transportConf, env.securityManager)) else Nil

  override def clientBootstraps: Seq[TransportClientBootstrap] =
    if (authenticates) Seq(new AuthClientBootstrap(transportConf, conf.getAppId, env.securityManager)) else Nil

  override def onFreePort[T](first: Int, count: Int)(serve: Int => T): T = {
    val retries = conf.clone.set("spark.port.maxRetries", (count - 1).toString)
    Utils.startServiceOnPort(first, (port: Int) => (serve(port), port), retries, Module)._1
  }

  override def open(chunk: Chunk): Option[ManagedBuffer] = {
    val id = BroadcastBlockId(chunk.job, chunk.block)
    manager.getLocalBytes(id).map { data =>
      def release(): Unit = manager.releaseLockAndDispose(id, data)
      val size = data.size
      if (chunk.offset + chunk.length > size) {
        release()
        throw new IllegalArgumentException(s"block $id has $size bytes: no ${chunk.length} at ${chunk.offset}")
      }
      new BlockPart(data, chunk, () => release())
    }
  }
}

private object SparkdlChunks {
  private val Module = "sparkdl"

  /** What lies in memory is sent from where it lies; what is on disk is read for it. */
  private final class BlockPart(data: BlockData, chunk: Chunk, free: () => Unit) extends ManagedBuffer {
    private val users = new AtomicInteger(1)

    override def size: Long = chunk.length.toLong

    override def convertToNetty(): AnyRef = data match {
      case memory: ByteBufferBlockData => Unpooled.wrappedBuffer(slices(memory): _*)
      case _ => Unpooled.wrappedBuffer(read())
    }

    /** Spark 4's, for TLS. It releases this buffer with a stream of it, and never with a ByteBuf. */
    def convertToNettyForSsl(): AnyRef = createInputStream()

    override def nioByteBuffer(): ByteBuffer = ByteBuffer.wrap(read())
    override def createInputStream(): InputStream = new ByteArrayInputStream(read())

    override def retain(): ManagedBuffer = {
      users.incrementAndGet()
      this
    }

    override def release(): ManagedBuffer = {
      if (users.decrementAndGet() == 0) free()
      this
    }

    private def slices(memory: ByteBufferBlockData): Array[ByteBuffer] = {
      val parts = Array.newBuilder[ByteBuffer]
      var begin = 0L
      memory.buffer.getChunks().foreach { part =>
        val from = math.max(chunk.offset - begin, 0)
        val until = math.min(chunk.offset + chunk.length - begin, part.remaining)
        if (from < until) parts += part.slice(part.position() + from.toInt, (until - from).toInt)
        begin += part.remaining
      }
      parts.result()
    }

    private def read(): Array[Byte] = {
      val stream = data.toInputStream()
      try {
        stream.skipNBytes(chunk.offset)
        stream.readNBytes(chunk.length)
      } finally stream.close()
    }
  }
}
