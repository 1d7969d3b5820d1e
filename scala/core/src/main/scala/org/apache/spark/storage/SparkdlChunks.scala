// SPDX-License-Identifier: Apache-2.0

package org.apache.spark.storage

import java.io.{EOFException, IOException, InputStream, RandomAccessFile}
import java.math.BigInteger
import java.nio.ByteBuffer
import java.util.concurrent.atomic.AtomicInteger
import javax.crypto.Cipher
import javax.crypto.spec.{IvParameterSpec, SecretKeySpec}

import io.netty.buffer.{ByteBuf, ByteBufInputStream, Unpooled}
import org.apache.commons.crypto.cipher.CryptoCipherFactory

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.network.buffer.ManagedBuffer
import org.apache.spark.network.client.TransportClientBootstrap
import org.apache.spark.network.crypto.{AuthClientBootstrap, AuthServerBootstrap}
import org.apache.spark.network.netty.SparkTransportConf
import org.apache.spark.network.server.TransportServerBootstrap
import org.apache.spark.network.util.TransportConf
import org.apache.spark.security.CryptoStreamUtils
import org.apache.spark.util.Utils
import org.apache.spark.util.io.ChunkedByteBuffer

import sparkdl.comm.chunks.ChunkTransport
import sparkdl.comm.transport.Chunk

/**
 * Parts of Spark for the network of chunks. The blocks are those of this executor's BlockManager,
 * locked while they are sent.
 */
private[spark] final class SparkdlChunks(
    env: SparkEnv,
    conf: SparkConf,
    override val bindAddress: String
) extends ChunkTransport {
  import SparkdlChunks._

  private val manager = env.blockManager
  private val diskKey = env.securityManager.getIOEncryptionKey()
  private val authenticates = env.securityManager.isAuthenticationEnabled()

  override val transportConf: TransportConf = {
    // A lost peer must not delay other peers for Spark's default of two minutes.
    val ownConf =
      conf.clone
        .set(s"spark.$Module.io.connectionCreationTimeout", "10s")
        .set(s"spark.$Module.sasl.timeout", "10s")
        .set(
          s"spark.$Module.io.mode",
          "NIO"
        ) // reads go right into the target, see sparkdl.comm.chunks.DirectReadAllocator
    fromSpark(ownConf)
  }

  /**
   * Call Spark's method by reflection. Spark 3 has no TLS between executors, and Spark 4 has one
   * more parameter for it.
   */
  private def fromSpark(conf: SparkConf): TransportConf = {
    val withTls = SparkTransportConf.getClass.getMethods.find { method =>
      method.getName == "fromSparkConf" && method.getParameterCount == 5
    }
    withTls.fold(SparkTransportConf.fromSparkConf(conf, Module)) { fromSparkConf =>
      val tls =
        env.securityManager.getClass.getMethod("getRpcSSLOptions").invoke(env.securityManager)
      fromSparkConf.invoke(SparkTransportConf, conf, Module, Int.box(0), None, Some(tls))
        .asInstanceOf[TransportConf]
    }
  }

  override def serverBootstraps: Seq[TransportServerBootstrap] =
    if (authenticates) Seq(new AuthServerBootstrap(transportConf, env.securityManager)) else Nil

  override def clientBootstraps: Seq[TransportClientBootstrap] =
    if (authenticates)
      Seq(new AuthClientBootstrap(transportConf, conf.getAppId, env.securityManager))
    else Nil

  override def onFreePort[T](first: Int, count: Int)(serve: Int => T): T = {
    val retries = conf.clone.set("spark.port.maxRetries", (count - 1).toString)
    Utils.startServiceOnPort(first, (port: Int) => (serve(port), port), retries, Module)._1
  }

  /**
   * Open a part of a block. Return None if this executor does not have the block, or if the block
   * is not this plugin's: Spark's broadcasts may contain secrets. A block on disk stays there,
   * unlike with BlockManager.getLocalBytes, which reads a whole block into memory if there is room.
   */
  override def open(chunk: Chunk): Option[ManagedBuffer] = ownId(chunk).flatMap(open(_, chunk))

  override def has(chunk: Chunk): Boolean =
    ownId(chunk).exists(manager.blockInfoManager.get(_).isDefined)

  private def ownId(chunk: Chunk): Option[BlockId] =
    if (SparkdlBlocks.isOwn(chunk.block)) Some(BroadcastBlockId(chunk.job, chunk.block)) else None

  private def open(id: BlockId, chunk: Chunk): Option[ManagedBuffer] =
    manager.blockInfoManager.lockForReading(id, blocking = false).map { info =>
      def release(): Unit = manager.releaseLock(id)
      try {
        if (chunk.offset + chunk.length > info.size)
          throw new IllegalArgumentException(
            s"block $id has ${info.size} bytes: it does not have ${chunk.length} at ${chunk.offset}"
          )
        val body = bytes(id, chunk).getOrElse(
          throw new IOException(s"block $id is neither in memory nor on disk")
        )
        new BlockPart(chunk.length, body, () => release())
      } catch {
        case e: Throwable =>
          release()
          throw e
      }
    }

  private def bytes(id: BlockId, chunk: Chunk): Option[() => ByteBuf] = {
    def inMemory =
      manager.memoryStore.getBytes(id).map(memory =>
        () => Unpooled.wrappedBuffer(slices(memory, chunk): _*)
      )
    def onDisk = if (manager.diskStore.contains(id))
      Some(() => Unpooled.wrappedBuffer(read(id, chunk)))
    else None
    inMemory.orElse(onDisk)
  }

  /**
   * Read a part of a block on disk, without what is before it: plain files and Spark's own cipher
   * allow random access.
   */
  private def read(id: BlockId, chunk: Chunk): Array[Byte] = diskKey match {
    case Some(key) if conf.get(Transformation, CounterMode) == CounterMode =>
      decrypt(id, key, chunk)
    case _ =>
      val stream = manager.diskStore.getBytes(id).toInputStream()
      try {
        stream.skipNBytes(chunk.offset)
        val bytes = stream.readNBytes(chunk.length)
        if (bytes.length < chunk.length)
          throw new EOFException(s"the file of block $id is shorter than the block")
        bytes
      } finally stream.close()
  }

  /**
   * Decrypt a part of a block on disk. In counter mode, AES encrypts every 16 bytes separately. The
   * file begins with the initialization vector. The i-th 16 bytes have this vector plus i as their
   * counter, with i from 0.
   */
  private def decrypt(id: BlockId, key: Array[Byte], chunk: Chunk): Array[Byte] = {
    val vectorBytes = CryptoStreamUtils.IV_LENGTH_IN_BYTES
    val vector = new Array[Byte](vectorBytes)
    val before = (chunk.offset % CipherBytes).toInt
    val bytes = new Array[Byte](before + chunk.length)
    val file = new RandomAccessFile(manager.diskBlockManager.getFile(id), "r")
    try {
      file.readFully(vector)
      file.seek(vectorBytes + chunk.offset - before)
      file.readFully(bytes)
    } finally file.close()
    val counter =
      new BigInteger(1, vector).add(BigInteger.valueOf(chunk.offset / CipherBytes)).toByteArray
    val start = Array.fill(vectorBytes - counter.length)(0.toByte) ++ counter.takeRight(vectorBytes)
    val cipher =
      CryptoCipherFactory.getCryptoCipher(CounterMode, CryptoStreamUtils.toCryptoConf(conf))
    try {
      cipher.init(Cipher.DECRYPT_MODE, new SecretKeySpec(key, "AES"), new IvParameterSpec(start))
      cipher.doFinal(bytes, 0, bytes.length, bytes, 0)
    } finally cipher.close()
    bytes.drop(before)
  }
}

private object SparkdlChunks {
  private val Module = "sparkdl"
  private val Transformation = "spark.io.crypto.cipher.transformation"
  private val CounterMode = "AES/CTR/NoPadding"

  /** Bytes that the cipher encrypts at a time. */
  private val CipherBytes = 16

  private def slices(memory: ChunkedByteBuffer, chunk: Chunk): Array[ByteBuffer] = {
    val parts = Array.newBuilder[ByteBuffer]
    var begin = 0L
    memory.getChunks().foreach { part =>
      val from = math.max(chunk.offset - begin, 0)
      val until = math.min(chunk.offset + chunk.length - begin, part.remaining)
      if (from < until) parts += part.slice(part.position() + from.toInt, (until - from).toInt)
      begin += part.remaining
    }
    parts.result()
  }

  /**
   * Buffer of a part of a block. In memory, it is sent in place. On disk, it is read at each call
   * of `body`.
   */
  private final class BlockPart(length: Int, body: () => ByteBuf, free: () => Unit)
      extends ManagedBuffer {
    private val users = new AtomicInteger(1)

    override def size: Long = length.toLong

    override def convertToNetty(): AnyRef = body()

    /**
     * Return the stream that Spark 4 needs for TLS. Spark releases this buffer with the stream, but
     * would not with a ByteBuf.
     */
    def convertToNettyForSsl(): AnyRef = createInputStream()

    override def nioByteBuffer(): ByteBuffer = body().nioBuffer()
    override def createInputStream(): InputStream = new ByteBufInputStream(body())

    override def retain(): ManagedBuffer = {
      users.incrementAndGet()
      this
    }

    override def release(): ManagedBuffer = {
      if (users.decrementAndGet() == 0) free()
      this
    }
  }
}
