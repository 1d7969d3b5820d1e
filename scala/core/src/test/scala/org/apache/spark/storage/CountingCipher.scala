// SPDX-License-Identifier: Apache-2.0

package org.apache.spark.storage

import java.nio.ByteBuffer
import java.security.Key
import java.security.spec.AlgorithmParameterSpec
import java.util.Properties
import java.util.concurrent.atomic.AtomicLong
import javax.crypto.Cipher

import org.apache.commons.crypto.cipher.CryptoCipher

/** Java's own cipher, with a count of the bytes that it decrypts in this JVM. */
final class CountingCipher(properties: Properties, transformation: String) extends CryptoCipher {
  private val cipher = Cipher.getInstance(transformation)
  private var decrypts = false

  override def getBlockSize: Int = cipher.getBlockSize
  override def getAlgorithm: String = transformation

  override def init(mode: Int, key: Key, parameters: AlgorithmParameterSpec): Unit = {
    decrypts = mode == Cipher.DECRYPT_MODE
    cipher.init(mode, key, parameters)
  }

  override def update(from: ByteBuffer, to: ByteBuffer): Int =
    counted(from.remaining)(cipher.update(from, to))
  override def doFinal(from: ByteBuffer, to: ByteBuffer): Int =
    counted(from.remaining)(cipher.doFinal(from, to))
  override def update(from: Array[Byte], offset: Int, length: Int, to: Array[Byte], at: Int): Int =
    counted(length)(cipher.update(from, offset, length, to, at))
  override def doFinal(from: Array[Byte], offset: Int, length: Int, to: Array[Byte], at: Int): Int =
    counted(length)(cipher.doFinal(from, offset, length, to, at))

  override def close(): Unit = ()

  private def counted(bytes: Int)(run: => Int): Int = {
    if (decrypts) CountingCipher.decrypted.addAndGet(bytes.toLong)
    run
  }
}

private object CountingCipher {
  val decrypted = new AtomicLong
}
